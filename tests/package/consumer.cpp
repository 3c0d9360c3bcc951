#include <cstdio>
#include <headwater/headwater.hpp>
#include <vector>

int main() {
  using headwater::DType, headwater::MutableRows, headwater::Rows;
  const std::int64_t tokens = 2048, heads = 4, kv_heads = 2, width = 64;
  std::vector<float> q(tokens * heads * width, 0.1f), out(q.size());
  std::vector<float> k(tokens * kv_heads * width, 0.2f), v(k.size(), 0.5f);

  const headwater::Shape shape{
      .n_head = heads, .n_head_kv = kv_heads, .d_head = width, .d_value = width, .capacity = tokens};
  headwater::Options options;
  options.chunk = 512, options.local = 64, options.heavy = 64;
  const auto session = headwater::engine("cpu").open(shape, options);
  session->begin(headwater::Step::prefill(tokens));
  session->attend(0, Rows::token_major(q.data(), DType::f32, heads, width),
                  Rows::token_major(k.data(), DType::f32, kv_heads, width),
                  Rows::token_major(v.data(), DType::f32, kv_heads, width),
                  MutableRows::token_major(out.data(), DType::f32, heads, width));
  session->end();
  std::printf("%zu chunks, last output %.4f\n", session->plan().size(), static_cast<double>(out.back()));
}
