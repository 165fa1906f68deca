#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "storage.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.s3", "0.1.0", "Objects in Amazon S3 and its like", [](mh::Registry& r) {
  r.add<s3::S3>("s3", "s3://BUCKET/PREFIX: Amazon S3, MinIO, Ceph and others that speak the same");
})
