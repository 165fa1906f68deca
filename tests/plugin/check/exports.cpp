// Shows a function to everybody, as a plugin does that is compiled without hidden visibility.
extern "C" __attribute__((visibility("default"))) int helper_of_a_plugin() {
  return 42;
}

#include "../fixtures/good.cpp"
