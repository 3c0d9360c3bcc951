/* NUM-1 and SCORE-4: the three element types. */

#include <math.h>
#include <string.h>

#include "tests/plugin/naive.h"

/* A 16-bit format: bits of the fraction, exponent field of infinity, log2 of the smallest subnormal, NaN. */
struct format {
  int fraction_bits;
  int infinity;
  int least;
  uint16_t nan;
};

static const struct format kF16 = {10, 31, -24, 0x7e00};
static const struct format kBf16 = {7, 255, -133, 0x7fc0};

/* To nearest even; overflow goes to infinity, subnormals are kept. Exact but for the one rounding of nearbyint(). */
static uint16_t encode(struct format f, double value) {
  if (isnan(value)) return f.nan;
  const uint16_t sign = signbit(value) ? 0x8000 : 0;
  const double magnitude = fabs(value);
  /* The unit in the last place is 2^ulp. */
  int ulp = f.least;
  if (isinf(magnitude)) return (uint16_t)(sign | (f.infinity << f.fraction_bits));
  if (magnitude > 0.0 && ilogb(magnitude) - f.fraction_bits > f.least)
    ulp = ilogb(magnitude) - f.fraction_bits;
  const double units = nearbyint(ldexp(magnitude, -ulp));
  /* One exponent field holds 2^fraction_bits units; a carry out of the fraction goes into the field. */
  const long bits = (long)units + ((long)(ulp - f.least) << f.fraction_bits);
  const long most = (long)f.infinity << f.fraction_bits;
  return (uint16_t)(sign | (uint16_t)(bits < most ? bits : most));
}

/* 2^n, a normal number. Quicker than ldexp(), which took a third of the kit's time on this engine. */
static double power_of_two(int n) {
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static double decode(struct format f, uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> f.fraction_bits;
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == f.infinity) return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
  if (exponent == 0) return sign * fraction * power_of_two(f.least);
  return sign * (fraction + (1 << f.fraction_bits)) * power_of_two(f.least + exponent - 1);
}

size_t element_size(int32_t type) { return type == HEADWATER_F32 ? sizeof(float) : sizeof(uint16_t); }

double load_element(const void* data, int32_t type, int64_t index) {
  const unsigned char* at = (const unsigned char*)data + index * (int64_t)element_size(type);
  if (type == HEADWATER_F32) {
    float value;
    memcpy(&value, at, sizeof value); /* rows may stand at any address */
    return value;
  }
  uint16_t bits;
  memcpy(&bits, at, sizeof bits);
  return decode(type == HEADWATER_F16 ? kF16 : kBf16, bits);
}

void store_element(void* data, int32_t type, int64_t index, double value) {
  unsigned char* at = (unsigned char*)data + index * (int64_t)element_size(type);
  if (type == HEADWATER_F32) {
    float rounded = (float)value;
    if (FAULT(truncates) && fabs((double)rounded) > fabs(value)) rounded = nextafterf(rounded, 0.0f);
    memcpy(at, &rounded, sizeof rounded);
    return;
  }
  const uint16_t bits = encode(type == HEADWATER_F16 ? kF16 : kBf16, value);
  memcpy(at, &bits, sizeof bits);
}

float load_score(const struct headwater_session* s, const struct layer* layer, int64_t head,
                 int64_t position) {
  const int64_t at = head * s->shape.capacity + position;
  const int32_t type = s->options.score_type == HEADWATER_SCORE_BF16 ? HEADWATER_BF16 : HEADWATER_F32;
  return (float)load_element(layer->scores, type, at);
}

void store_score(const struct headwater_session* s, struct layer* layer, int64_t head, int64_t position,
                 float value) {
  const int64_t at = head * s->shape.capacity + position;
  if (s->options.score_type == HEADWATER_SCORE_BF16) {
    store_element(layer->scores, HEADWATER_BF16, at, value);
  } else {
    memcpy((float*)layer->scores + at, &value, sizeof value);
  }
}
