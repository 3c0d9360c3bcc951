#ifndef HEADWATER_TESTS_C_ABI_PLAIN_ATTENTION_H_
#define HEADWATER_TESTS_C_ABI_PLAIN_ATTENTION_H_

/* A small problem and its attention in plain C and double, written from docs/spec.md alone. */

#include <stdint.h>

enum {
  kLayers = 2,
  kHeads = 4,
  kHeadsKv = 2,
  kWidth = 8,
  kValueWidth = 6,
  kTokens = 24 /* prefill of kPrefill, then decode steps */
};

typedef struct problem {
  float q[kLayers][kTokens][kHeads][kWidth];
  float k[kLayers][kTokens][kHeadsKv][kWidth];
  float v[kLayers][kTokens][kHeadsKv][kValueWidth];
  float sinks[kHeads];
  float alibi[kHeads];
  double softcap;
} problem;

/* Values in [-1, 1), the same in every run. */
void fill_problem(problem* p);

/* One softmax of query i over the listed keys and the sink (LOGIT-1..4, FUSE-2): out[kValueWidth] and the natural
 * log-sum-exp. */
void attend_to_keys(const problem* p, int layer, int head, int i, const int32_t* keys, int count, double* out,
                    double* lse);

#endif /* HEADWATER_TESTS_C_ABI_PLAIN_ATTENTION_H_ */
