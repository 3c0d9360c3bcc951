/* A user of the C ABI of the model runtime: what the program writes after a prompt. */
#include <headwater/runtime.h>
#include <stdio.h>

headwater_status generate(headwater_model* model, const char* prompt, int most,
                          FILE* out); /* of docs/embedding.md */

int main(int count, char** arguments) {
  headwater_model* model = NULL;
  if (count != 3) return fputs("usage: runtime MODEL.gguf PROMPT\n", stderr), 2;
  headwater_status status = headwater_model_open(arguments[1], HEADWATER_PROJECTIONS_F32, &model);
  if (status != HEADWATER_OK) return fprintf(stderr, "%s\n", headwater_runtime_last_error()), 1;
  status = generate(model, arguments[2], 32, stdout);
  puts("");
  headwater_model_close(model);
  return status == HEADWATER_OK ? 0 : 1;
}
