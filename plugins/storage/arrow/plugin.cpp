#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "storage.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.arrow", "0.1.0", "Objects that libarrow reads", [](mh::Registry& r) {
  const std::string azure =
      "://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH: Azure Blob Storage, to be read";
  r.add<clouds::Google>("gs", "gs://BUCKET/PREFIX: Google Cloud Storage, to be read");
  r.add<clouds::Azure>("az", "az://CONTAINER/PATH: Azure Blob Storage, to be read");
  r.add<clouds::Azure>("abfs", "abfs" + azure);
  r.add<clouds::Azure>("abfss", "abfss" + azure);
})
