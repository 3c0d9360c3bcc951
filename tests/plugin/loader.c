/* A plug-in whose table is wrong in one way, named by the environment variable LOADER_FAULT; no function of it is ever
 * called. The kit must refuse it, say why in one line, and go on. */

#define _GNU_SOURCE

#include <fenv.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "headwater/plugin.h"

#ifdef LOADER_UNDEFINED
void a_function_that_no_library_has(void);
#endif

/* Every function of the table; the kit must not get as far as calling it. */
static void never_called(void) { abort(); }

static headwater_engine_table table;

static void fill(void) {
  memset(&table, 0, sizeof table);
  table.struct_size = sizeof table;
  table.abi_version = HEADWATER_PLUGIN_VERSION;
  table.name = "loader";
  table.isa = "none";
  table.description = "nothing";
  table.unavailable_because = "";
  /* All members after the texts are function pointers. */
  unsigned char* first = (unsigned char*)&table.last_error;
  unsigned char* const end = (unsigned char*)(&table + 1);
  void (*const function)(void) = never_called;
  for (; first < end; first += sizeof function) memcpy(first, &function, sizeof function);
}

const headwater_engine_table* headwater_plugin_v1(void) {
  const char* fault = getenv("LOADER_FAULT");
  if (fault == NULL) abort();
  fill();
  const size_t functions = offsetof(headwater_engine_table, last_error);
#ifdef LOADER_UNDEFINED
  a_function_that_no_library_has();
#endif
  if (strcmp(fault, "null_table") == 0) return NULL;
  if (strcmp(fault, "version") == 0) table.abi_version = 7;
  if (strcmp(fault, "size") == 0) table.struct_size = offsetof(headwater_engine_table, session_failed) - 1;
  if (strcmp(fault, "size_0") == 0) table.struct_size = 0;
  if (strcmp(fault, "reserved") == 0) table.reserved = 1;
  if (strcmp(fault, "claims") == 0) table.claims = UINT64_C(1) << 40;
  if (strcmp(fault, "null_name") == 0) table.name = NULL;
  if (strcmp(fault, "empty_name") == 0) table.name = "";
  if (strcmp(fault, "bad_name") == 0) table.name = "<script>\n";
  if (strcmp(fault, "long_name") == 0) {
    table.name = "0123456789012345678901234567890123456789012345678901234567890123456789";
  }
  if (strcmp(fault, "own_name") == 0) table.name = "reference";
  if (strcmp(fault, "isa_lines") == 0) table.isa = "two\nlines";
  if (strcmp(fault, "null_description") == 0) table.description = NULL;
  if (strcmp(fault, "unavailable") == 0) table.unavailable_because = "needs a device that nobody has";
  if (strcmp(fault, "null_open") == 0) table.open = NULL;
  if (strcmp(fault, "null_last_error") == 0) memset((char*)&table + functions, 0, sizeof(void*));
  if (strcmp(fault, "null_set_observer") == 0) table.set_observer = NULL;
  if (strcmp(fault, "null_session_failed") == 0) table.session_failed = NULL;
  if (strcmp(fault, "claim_without_function") == 0) {
    table.claims = HEADWATER_CLAIM_TRUNCATE;
    table.truncate = NULL;
  }
  if (strcmp(fault, "claim_behind_its_end") == 0) {
    table.claims = HEADWATER_CLAIM_LSE;
    table.struct_size = offsetof(headwater_engine_table, attend_lse);
  }
  if (strcmp(fault, "rounding") == 0) fesetround(FE_TOWARDZERO);
  if (strcmp(fault, "crash") == 0) raise(SIGSEGV);
  if (strcmp(fault, "exit") == 0) exit(0);
  if (strcmp(fault, "hang") == 0) {
    for (;;) pause();
  }
  return &table;
}
