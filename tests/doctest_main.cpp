// The program of a test: fails, too, where the filters that it is given leave no test case.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

namespace {

bool g_none_ran = false;

struct CountsTests final : doctest::IReporter {
  explicit CountsTests(const doctest::ContextOptions& /*options*/) {}

  void test_run_end(const doctest::TestRunStats& stats) override {
    g_none_ran = stats.numTestCasesPassingFilters == 0;
  }

  void report_query(const doctest::QueryData& /*data*/) override {}

  void test_run_start() override {}

  void test_case_start(const doctest::TestCaseData& /*data*/) override {}

  void test_case_reenter(const doctest::TestCaseData& /*data*/) override {}

  void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}

  void test_case_exception(const doctest::TestCaseException& /*error*/) override {}

  void subcase_start(const doctest::SubcaseSignature& /*signature*/) override {}

  void subcase_end() override {}

  void log_assert(const doctest::AssertData& /*data*/) override {}

  void log_message(const doctest::MessageData& /*data*/) override {}

  void test_case_skipped(const doctest::TestCaseData& /*data*/) override {}
};

REGISTER_LISTENER("counts tests", 1, CountsTests);

} // namespace

int main(int count, char** words) {
  doctest::Context context(count, words);
  const int status = context.run();
  return status == 0 && g_none_ran ? 1 : status;
}
