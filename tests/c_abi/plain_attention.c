#include "tests/c_abi/plain_attention.h"

#include <math.h>

/* A linear congruential generator (Knuth, TAOCP 2, 3.3.4): upper 24 bits. */
static float next_value(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)((double)(*state >> 40) / 8388608.0 - 1.0);
}

void fill_problem(problem* p) {
  uint64_t state = 20260101;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int t = 0; t < kTokens; ++t) {
      for (int h = 0; h < kHeads; ++h) {
        for (int e = 0; e < kWidth; ++e) p->q[layer][t][h][e] = 3.0f * next_value(&state);
      }
      for (int h = 0; h < kHeadsKv; ++h) {
        for (int e = 0; e < kWidth; ++e) p->k[layer][t][h][e] = next_value(&state);
        for (int e = 0; e < kValueWidth; ++e) p->v[layer][t][h][e] = next_value(&state);
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    p->sinks[h] = next_value(&state);
    p->alibi[h] = 0.01f * (float)(h + 1);
  }
  p->sinks[kHeads - 1] = -INFINITY; /* LOGIT-4: none */
  p->softcap = 5.0;
}

static double logit(const problem* p, int layer, int head, int i, int j) {
  const int head_kv = head * kHeadsKv / kHeads;
  double s = 0.0;
  for (int e = 0; e < kWidth; ++e) s += (double)p->q[layer][i][head][e] * (double)p->k[layer][j][head_kv][e];
  s /= sqrt((double)kWidth);
  s = p->softcap * tanh(s / p->softcap);
  return s - (double)p->alibi[head] * (double)(i - j);
}

void attend_to_keys(const problem* p, int layer, int head, int i, const int32_t* keys, int count, double* out,
                    double* lse) {
  const int head_kv = head * kHeadsKv / kHeads;
  double sum = exp((double)p->sinks[head]); /* logits are small: no offset is needed */
  for (int e = 0; e < kValueWidth; ++e) out[e] = 0.0;
  for (int n = 0; n < count; ++n) {
    const double weight = exp(logit(p, layer, head, i, keys[n]));
    sum += weight;
    for (int e = 0; e < kValueWidth; ++e) out[e] += weight * (double)p->v[layer][keys[n]][head_kv][e];
  }
  for (int e = 0; e < kValueWidth; ++e) out[e] /= sum;
  *lse = log(sum);
}
