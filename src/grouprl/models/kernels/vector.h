/* One vector register of floats at a time, in GCC's and Clang's portable vectors. The width is the target's: a compiler splits
 * wider vectors through memory, which made attention 13 to 40 times as slow (64 bytes on AVX2, GCC 12). Targets without a
 * width of their own here get 16 bytes, as SSE and NEON have. */
#ifndef GROUPRL_VECTOR_H
#define GROUPRL_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define W 16 /* floats of a vector */
#define REGISTERS 32
#elif defined(__AVX2__) && defined(__FMA__)
#define W 8
#define REGISTERS 16
#else
#define W 4
#if defined(__aarch64__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
#endif

typedef float vec __attribute__((vector_size(4 * W), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * W), aligned(4)));
typedef uint32_t uvec __attribute__((vector_size(4 * W), aligned(4)));
typedef uint16_t hvec __attribute__((vector_size(2 * W), aligned(2)));

INLINE vec splat(float x) { return x - (vec){0}; }

/* half: the array is bfloat16, else float32. */
INLINE vec load(const void *from, int64_t at, int half) {
  if (!half) return *(const vec *)((const float *)from + at);
  uvec wide = __builtin_convertvector(*(const hvec *)((const uint16_t *)from + at), uvec) << 16;
  return (vec)wide;
}

INLINE void store(void *to, int64_t at, vec x, int half) {
  if (!half) {
    *(vec *)((float *)to + at) = x;
    return;
  }
  uvec bits = (uvec)x, nan = (uvec)(x != x);
  bits += 0x7fff + ((bits >> 16) & 1); /* to the nearest, ties to even */
  bits = (nan & 0x7fc00000) | (~nan & bits);
  *(hvec *)((uint16_t *)to + at) = __builtin_convertvector(bits >> 16, hvec);
}

INLINE vec larger(vec a, vec b) {
  ivec first = a > b;
  return (vec)((first & (ivec)a) | (~first & (ivec)b));
}

INLINE float sum(vec x) {
  float parts[W];
  store(parts, 0, x, 0);
#pragma GCC unroll 4
  for (int n = W / 2; n; n /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) parts[i] += parts[i + n];
  return parts[0];
}

INLINE float largest(vec x) {
  float most = x[0];
  for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
  return most;
}

/* e^x to about 1e-7 of its value, by 2^n e^r with |r| <= ln(2)/2 and a polynomial of degree 6 in r; 0 below -87. */
INLINE vec exponential(vec x) {
  vec magic = splat(12582912.0f); /* 1.5 * 2^23: adding and subtracting it rounds to a whole number */
  vec low = splat(-87.0f), high = splat(88.0f);
  ivec tiny = x < low;
  vec y = larger(x, low);
  ivec big = y > high;
  y = (vec)((big & (ivec)high) | (~big & (ivec)y));
  vec n = y * 1.44269504088896341f + magic - magic;
  vec r = y - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts, the first of them exact */
  vec p = splat(1.3981999507e-3f);
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  ivec scale = (__builtin_convertvector(n, ivec) + 127) << 23;
  vec result = p * (vec)scale;
  return (vec)(~tiny & (ivec)result);
}

#endif
