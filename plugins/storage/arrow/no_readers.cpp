#include "readers.hpp"

#include <megahost/error.hpp>

namespace clouds {

namespace {

[[noreturn]] void refuse(const std::string& store) {
  throw mh::Error(
      store + " is read through libarrow, which is not there",
      "in the clone of megahost: ./megahost arrow fetches it (55 MB) and builds what needs it"
  );
}

} // namespace

ObjectReader::~ObjectReader() = default;

std::unique_ptr<ObjectReader> read_google(const GoogleOptions& /*options*/) {
  refuse("Google Cloud Storage");
}

std::unique_ptr<ObjectReader>
read_azure(const AzureOptions& /*options*/, const AzureSecret& /*secret*/) {
  refuse("Azure Blob Storage");
}

} // namespace clouds
