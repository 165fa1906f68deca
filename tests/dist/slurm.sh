#!/bin/sh
# slurm.sh up|down FOLDER: a private Slurm of two nodes, both this machine, with its own key and ports; as root. Jobs of its
# partition "first" preempt others, which have 30 seconds, and a job is started again after 5. Then
# SLURM_CONF=FOLDER/slurm.conf srun ... Debian's packages slurmctld, slurmd, slurm-client and munge.
set -eu

folder=$(readlink -m "$2")
if [ "$1" = down ]; then
  SLURM_CONF=$folder/slurm.conf scontrol shutdown 2> /dev/null || :
  for file in "$folder"/slurmd.*.pid "$folder/slurmctld.pid" "$folder/munge/munged.pid"; do
    [ ! -e "$file" ] || kill "$(cat "$file")" 2> /dev/null || :
  done
  exit 0
fi

host=$(hostname -s)
mkdir -p "$folder/state" "$folder/spool/n1" "$folder/spool/n2"
chmod 755 "$folder"
install -d -o munge -g munge -m 0700 "$folder/munge"
install -d -o munge -g munge -m 0755 "$folder/socket"
head -c 1024 /dev/urandom > "$folder/munge/key"
chown munge:munge "$folder/munge/key"
chmod 400 "$folder/munge/key"
# --force: the folder may lie below one that all may write to.
setpriv --reuid=munge --regid=munge --clear-groups munged --force --key-file="$folder/munge/key" \
  --socket="$folder/socket/munge" --pid-file="$folder/munge/munged.pid" --log-file="$folder/munge/log" \
  --seed-file="$folder/munge/seed"
port=$((20000 + $$ % 20000))
cat > "$folder/slurm.conf" << END
ClusterName=private
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/socket/munge,cred_expire=5
CredType=cred/munge
SlurmctldPort=$port
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MailProg=/bin/true
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=8 RealMemory=1000 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=first Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
END
# Nothing here limits a task by cgroups. Named, their plugin does not look for them: they may not be mounted.
echo CgroupPlugin=cgroup/v1 > "$folder/cgroup.conf"
export SLURM_CONF="$folder/slurm.conf"
slurmctld
for node in n1 n2; do
  slurmd -N $node || {
    cat "$folder/slurmd.$node.log" >&2
    exit 1
  }
done
for second in $(seq 120); do
  [ "$(sinfo -h -o %T | sort -u)" != idle ] || exit 0
  sleep 1
done
sinfo >&2
exit 1
