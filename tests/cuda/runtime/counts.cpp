#include "counts.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

namespace {

class Table {
public:
  static Table& own() {
    static auto* table = new Table; // libraries count until the process is gone
    return *table;
  }

  template <class Change>
  void change(const char* kind, const char* name, const Change& change) {
    const std::scoped_lock lock(mutex_);
    if (records_ != nullptr) {
      change(record(std::string(kind) + " " + name));
    }
  }

private:
  Table() {
    const char* folder = std::getenv("EMPTY_CUDA_COUNTS");
    if (folder == nullptr) {
      return;
    }
    const std::string file = std::string(folder) + "/" + std::to_string(getpid());
    const int opened = open(file.c_str(), O_RDWR | O_CREAT, 0644);
    const size_t bytes = kCountRecords * sizeof(CountRecord);
    if (opened < 0 || ftruncate(opened, static_cast<off_t>(bytes)) != 0) {
      std::perror(file.c_str());
      std::abort();
    }
    void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    if (place == MAP_FAILED) {
      std::perror(file.c_str());
      std::abort();
    }
    records_ = static_cast<CountRecord*>(place);
  }

  CountRecord& record(std::string name) {
    name.resize(std::min(name.size(), sizeof(CountRecord::name) - 1));
    const auto [at, added] = numbers_.try_emplace(name, numbers_.size());
    CountRecord& found = records_[std::min(at->second, kCountRecords - 1)];
    if (added) {
      std::memcpy(found.name, name.c_str(), name.size() + 1);
    }
    return found;
  }

  std::mutex mutex_;
  std::unordered_map<std::string, size_t> numbers_;
  CountRecord* records_ = nullptr;
};

} // namespace

void empty_count(const char* kind, const char* name, double amount) {
  Table::own().change(kind, name, [&](CountRecord& record) {
    ++record.count;
    record.amount += amount;
  });
}

void empty_most(const char* kind, const char* name, double amount) {
  Table::own().change(kind, name, [&](CountRecord& record) {
    record.count = 1;
    record.amount = std::max(record.amount, amount);
  });
}
