#ifndef HEADWATER_TESTS_C_ABI_CHECK_H_
#define HEADWATER_TESTS_C_ABI_CHECK_H_

/* What the C tests share: checks that count and name their failures. */

#include <stdint.h>

#include "headwater/headwater.h"

/* Failed checks of this program so far. */
int failed_checks(void);
/* Checks made so far: a test that checks nothing has not run. */
int made_checks(void);

void check_true(int condition, const char* text, const char* file, int line);
void check_equal(int64_t actual, int64_t expected, const char* text, const char* file, int line);
void check_near(double actual, double expected, double bound, const char* text, const char* file, int line);
/* The call gave `expected`, and headwater_last_error() holds one line that contains `part` ("" after success). */
void check_status(headwater_status actual, headwater_status expected, const char* part, const char* text,
                  const char* file, int line);

#define CHECK(condition) check_true((condition) ? 1 : 0, #condition, __FILE__, __LINE__)
#define CHECK_EQUAL(actual, expected) check_equal((actual), (expected), #actual, __FILE__, __LINE__)
#define CHECK_NEAR(actual, expected, bound) \
  check_near((actual), (expected), (bound), #actual, __FILE__, __LINE__)
#define CHECK_OK(call) check_status((call), HEADWATER_OK, "", #call, __FILE__, __LINE__)
#define CHECK_FAILS(call, status, part) check_status((call), (status), (part), #call, __FILE__, __LINE__)

/* Real prefill and decode steps of every engine against the plain C computation. */
void test_numbers(const char* engine);
/* The same with rule BLOCKS. */
void test_blocks(const char* engine);
/* Its options and kv_bits: defaults, what must be refused, structures of older programs. */
void test_blocks_options(void);
/* Pinned tokens, dense layers and short turns of every engine that has them. */
void test_dense(const char* engine);
/* Their options. */
void test_dense_options(void);
/* Steps and tokens that are taken back, calls that are stopped, log-sum-exps, threads of the host. */
void test_sessions(const char* engine);
/* Every call that must be refused. */
void test_errors(void);

#endif /* HEADWATER_TESTS_C_ABI_CHECK_H_ */
