#!/bin/sh
# gateway.sh FOLDER PORT KEY SECRET: a Ceph of one machine, its objects in memory, with a RADOS gateway on 127.0.0.1:PORT; all of
# it in FOLDER, the processes' ids in FOLDER/out/*.pid. Debian: ceph-mon ceph-osd radosgw ceph-common.
set -eu

folder=$1 port=$2
mkdir -p "$folder/mon" "$folder/osd" "$folder/out"
id=$(cat /proc/sys/kernel/random/uuid)
cat > "$folder/ceph.conf" << END
[global]
fsid = $id
mon_initial_members = a
mon_host = v2:127.0.0.1:$((port + 1))
public_network = 127.0.0.0/8
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
osd_objectstore = memstore
memstore_device_bytes = 4294967296
run_dir = $folder/out
pid_file = $folder/out/\$name.pid
log_file = $folder/out/\$name.log
admin_socket = $folder/out/\$name.asok
keyring = $folder/keyring
ms_bind_ipv6 = false
[mon.a]
mon_data = $folder/mon
mon_addr = 127.0.0.1:$((port + 1))
[osd.0]
osd_data = $folder/osd
[client.admin]
rgw_frontends = beast endpoint=127.0.0.1:$port
rgw_dns_name = localhost
rgw_gc_obj_min_wait = 5
rgw_gc_processor_period = 5
rgw_gc_processor_max_time = 5
END
export CEPH_CONF="$folder/ceph.conf"
ceph-authtool --create-keyring "$folder/keyring" --gen-key -n mon. --cap mon 'allow *'
ceph-authtool --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' "$folder/keyring"
monmaptool --create --addv a "[v2:127.0.0.1:$((port + 1))]" --fsid "$id" "$folder/monmap"
ceph-mon -i a --mkfs --monmap "$folder/monmap" --keyring "$folder/keyring"
ceph-mon -i a
disk=$(cat /proc/sys/kernel/random/uuid)
timeout 60 ceph osd new "$disk"
ceph-authtool --create-keyring "$folder/osd/keyring" --gen-key -n osd.0
timeout 60 ceph auth add osd.0 osd 'allow *' mon 'allow profile osd' -i "$folder/osd/keyring"
cat "$folder/osd/keyring" >> "$folder/keyring"
ceph-osd -i 0 --mkfs --osd-uuid "$disk"
ceph-osd -i 0
timeout 120 radosgw -n client.admin
timeout 120 radosgw-admin user create --uid=test --display-name=test --access-key="$3" --secret-key="$4" > /dev/null
