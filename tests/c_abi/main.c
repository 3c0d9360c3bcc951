/* Every engine of the library through the C ABI. */

#include <stdio.h>
#include <string.h>

#include "tests/c_abi/check.h"

/* The header, the library and CMake's project(), which reads the header, say one version. */
static void test_version(void) {
  char numbers[40];
  snprintf(numbers, sizeof numbers, "%d.%d.%d", HEADWATER_VERSION_MAJOR, HEADWATER_VERSION_MINOR,
           HEADWATER_VERSION_PATCH);
  CHECK(strcmp(numbers, HEADWATER_PROJECT_VERSION) == 0);
  CHECK(strcmp(HEADWATER_VERSION, HEADWATER_PROJECT_VERSION) == 0);
  CHECK(strcmp(headwater_version(), HEADWATER_PROJECT_VERSION) == 0);
  CHECK_EQUAL(headwater_abi_version(), HEADWATER_ABI_VERSION);
}

int main(void) {
  int engines_run = 0;
  test_version();
  CHECK(headwater_engine_count() >= 2); /* the reference and one more */
  for (int32_t i = 0; i < headwater_engine_count(); ++i) {
    CHECK(headwater_engine_name(i) != NULL && headwater_engine_name(i)[0] != '\0');
    CHECK(headwater_engine_isa(i) != NULL && headwater_engine_isa(i)[0] != '\0');
    CHECK(headwater_engine_description(i) != NULL && headwater_engine_description(i)[0] != '\0');
    if (headwater_engine_unavailable_because(i)[0] != '\0') {
      printf("SKIP engine %s: %s\n", headwater_engine_name(i), headwater_engine_unavailable_because(i));
      continue;
    }
    test_numbers(headwater_engine_name(i));
    test_blocks(headwater_engine_name(i));
    test_dense(headwater_engine_name(i));
    test_sessions(headwater_engine_name(i));
    ++engines_run;
  }
  CHECK(engines_run >= 2);
  test_blocks_options();
  test_dense_options();
  test_errors();
  printf("%d engines, %d checks, %d failed\n", engines_run, made_checks(), failed_checks());
  return failed_checks() == 0 ? 0 : 1;
}
