/* A plug-in whose table is that of a test, which sets it first. */

#include "headwater/plugin.h"

static const headwater_engine_table* chosen;

HEADWATER_API void mock_plugin_use(const headwater_engine_table* table);
void mock_plugin_use(const headwater_engine_table* table) { chosen = table; }

const headwater_engine_table* headwater_plugin_v1(void) { return chosen; }
