#include "tests/c_abi/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;
static int checks = 0;

int failed_checks(void) { return failures; }

int made_checks(void) { return checks; }

static void failed(const char* text, const char* file, int line) {
  ++failures;
  fprintf(stderr, "%s:%d: %s: ", file, line, text);
}

void check_true(int condition, const char* text, const char* file, int line) {
  ++checks;
  if (condition) return;
  failed(text, file, line);
  fprintf(stderr, "is false\n");
}

void check_equal(int64_t actual, int64_t expected, const char* text, const char* file, int line) {
  ++checks;
  if (actual == expected) return;
  failed(text, file, line);
  fprintf(stderr, "is %lld, expected %lld\n", (long long)actual, (long long)expected);
}

void check_near(double actual, double expected, double bound, const char* text, const char* file, int line) {
  ++checks;
  if (fabs(actual - expected) <= bound) return; /* false for NaN */
  failed(text, file, line);
  fprintf(stderr, "is %.9g, expected %.9g within %.3g\n", actual, expected, bound);
}

void check_status(headwater_status actual, headwater_status expected, const char* part, const char* text,
                  const char* file, int line) {
  const char* message = headwater_last_error();
  ++checks;
  if (actual != expected) {
    failed(text, file, line);
    fprintf(stderr, "gave %s (%s), expected %s\n", headwater_status_name(actual), message,
            headwater_status_name(expected));
    return;
  }
  if ((actual == HEADWATER_OK) != (message[0] == '\0')) {
    failed(text, file, line);
    fprintf(stderr, "gave %s with the message '%s'\n", headwater_status_name(actual), message);
    return;
  }
  if (strstr(message, part) == NULL || strchr(message, '\n') != NULL) {
    failed(text, file, line);
    fprintf(stderr, "said '%s', expected one line with '%s'\n", message, part);
  }
}
