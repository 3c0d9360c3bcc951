#include "runtime/gguf/row_groups.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "headwater/testing/sabotage.hpp"
#include "runtime/gguf/kernels/fixed.hpp"
#include "runtime/gguf/kernels/groups.hpp"
#include "runtime/gguf/row_kernels.hpp"

namespace headwater::runtime {
namespace {

static_assert(kRowsOfGroup == kGroupRows);

/// Calls action(Group()) for the layout of a quantised type.
template <class Action>
auto with_layout(TensorType type, const Action& action) {
  switch (type) {
    case TensorType::q8_0: return action(Q8_0Group());
    case TensorType::q4_0: return action(Q4_0Group());
    case TensorType::q4_1: return action(Q4_1Group());
    case TensorType::q5_0: return action(Q5_0Group());
    case TensorType::q5_1: return action(Q5_1Group());
    case TensorType::q4_k: return action(Q4KGroup());
    case TensorType::q5_k: return action(Q5KGroup());
    case TensorType::iq4_nl: return action(Iq4NlGroup());
    case TensorType::mxfp4: return action(Mxfp4Group());
    case TensorType::q2_k: return action(Q2KGroup());
    case TensorType::q3_k: return action(Q3KGroup());
    case TensorType::iq4_xs: return action(Iq4XsGroup());
    default: assert(type == TensorType::q6_k); return action(Q6KGroup());
  }
}

// Four codes at a time, one in each byte of a word.

constexpr std::uint32_t in_each_byte(std::uint32_t byte) { return byte * 0x01010101U; }
constexpr std::uint32_t turned_right(std::uint32_t word, int bits) {
  return bits == 0 ? word : word >> bits | word << (32 - bits);
}
void add_bits(std::byte* at, std::uint32_t bits) {
  const std::uint32_t word = load_u32(at) | bits;
  std::memcpy(at, &word, sizeof word);
}
void put(std::byte* at, std::uint32_t word) { std::memcpy(at, &word, sizeof word); }

/// Four codes of the first run of a pair and four of the second into line j, at the place of a row. `unit` was zero.
void place(Q8_0Group, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  std::byte* const lines = unit + Q8_0Group::kLines + kLine * 2 * (kRunLines * pair + j);
  put(lines, first);
  put(lines + kLine, second);
}

template <class Group>
void place(Group, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  put(unit + Group::codes_at(pair, j), (first & in_each_byte(15)) | (second & in_each_byte(15)) << 4);
}

/// Codes of five bits; `turn`: which of the four places in a line of bits the two left over go to.
template <class Group>
void place_five(std::byte* unit, int pair, int j, int turn, std::uint32_t first, std::uint32_t second) {
  place<Group>({}, unit, pair, j, first, second >> 1);
  const std::uint32_t bits = (first & in_each_byte(16)) | (second & in_each_byte(1)) << 3;
  add_bits(unit + Group::bits_at(pair, j), turned_right(bits, 2 * turn));
}
void place(Q5_0Group, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  place_five<Q5_0Group>(unit, pair, j, j % 4, first, second);
}
void place(Q5_1Group, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  place_five<Q5_1Group>(unit, pair, j, j % 4, first, second);
}
void place(Q5KGroup, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  place_five<Q5KGroup>(unit, pair, j, pair, first, second);
}

void place(Q6KGroup, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  place<Q6KGroup>({}, unit, pair, j, first, second >> 2);
  const std::uint32_t bits = (first & in_each_byte(48)) | (second & in_each_byte(3)) << 2;
  add_bits(unit + Q6KGroup::bits_at(pair, j), turned_right(bits, 4 * (pair % 2)));
}

/// Two bits of each code, of an even pair below those of the odd one.
template <class Group>
void place_two(std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  const std::uint32_t bits = (first & in_each_byte(3)) | (second & in_each_byte(3)) << 2;
  add_bits(unit + Group::codes_at(pair, j), bits << (4 * (pair % 2)));
}
void place(Q2KGroup, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  place_two<Q2KGroup>(unit, pair, j, first, second);
}
void place(Q3KGroup, std::byte* unit, int pair, int j, std::uint32_t first, std::uint32_t second) {
  place_two<Q3KGroup>(unit, pair, j, first, second);
  const std::uint32_t bits = (first & in_each_byte(4)) | (second & in_each_byte(4)) << 2;
  add_bits(unit + Q3KGroup::bits_at(pair, j), turned_right(bits, Q3KGroup::turn(pair)));
}

/// What is placed of a block: its signed codes plus kZero, or the nibbles that stand for values of a table.
template <class Group>
struct Placed {
  using Block = typename Group::Block;
  static constexpr int kZero = Group::kZero;
};
template <>
struct Placed<Iq4NlGroup> {
  using Block = Nibbles<2>;
  static constexpr int kZero = 0;
};
template <>
struct Placed<Mxfp4Group> {
  using Block = Nibbles<1>;
  static constexpr int kZero = 0;
};
template <>
struct Placed<Iq4XsGroup> {
  using Block = Nibbles<8, 8>;
  static constexpr int kZero = 0;
};

/// The codes of one row in a unit, `blocks` as stored.
template <class Group>
void place_codes(const std::byte* blocks, std::byte* unit, int row) {
  using Block = typename Placed<Group>::Block;
  std::int8_t room[Block::kElements];
  float scales[16];
  float minima[16];
  for (int at = 0; at < Group::kElements; at += kFixedRun * 2) {
    std::uint8_t codes[kPairCodes];
    for (int i = 0; i < kPairCodes; i += std::min(kPairCodes, Block::kElements)) {
      const std::int64_t block = (at + i) / Block::kElements;
      const int inside = (at + i) % Block::kElements;
      const std::int8_t* const stored =
          Block::unpack(blocks + block * Block::kBytes, room, scales, minima) + inside;
      const int count = std::min(kPairCodes, Block::kElements);
      for (int k = 0; k < count; ++k)
        codes[i + k] = static_cast<std::uint8_t>(stored[k] + Placed<Group>::kZero);
    }
    for (int j = 0; j < kRunLines; ++j) {
      std::uint32_t first;
      std::uint32_t second;
      std::memcpy(&first, codes + 4 * j, sizeof first);
      std::memcpy(&second, codes + kFixedRun + 4 * j, sizeof second);
      place(Group(), unit + 4 * row, at / kPairCodes, j, first, second);
    }
  }
}

void copy_half(const std::byte* from, std::byte* to, int row) { std::memcpy(to + 2 * row, from, 2); }

/// Two blocks of 32; the place in front of the units is that of Q6_K and Q3_K.
template <class Group>
void place_scales(Group, const std::byte* blocks, std::byte* unit, std::byte*, int row) {
  for (int run = 0; run < 2; ++run, blocks += Group::Block::kBytes) {
    copy_half(blocks, unit + Group::kScales + 2 * kGroupRows * run, row);
    if constexpr (Group::Block::kMinima) {
      constexpr unsigned kSign = 0x8000;
      const auto taken_off = static_cast<std::uint16_t>(load_u16(blocks + 2) ^ kSign);
      std::memcpy(unit + Group::kMinima + 2 * (kGroupRows * run + row), &taken_off, sizeof taken_off);
    }
  }
}

void place_scales(Mxfp4Group, const std::byte* blocks, std::byte* unit, std::byte*, int row) {
  for (int run = 0; run < 2; ++run, blocks += MXFP4::kBytes) {
    const std::uint16_t scale = MXFP4::scale_bits(blocks);
    std::memcpy(unit + Mxfp4Group::kScales + 2 * (kGroupRows * run + row), &scale, sizeof scale);
  }
}

/// Codes of six bits of 4 * Runs runs: Runs of them in each of three lines, whose upper two bits the others have.
template <int Runs>
void place_sixes(const std::uint8_t* codes, std::byte* lines, int row) {
  for (int run = 0; run < Runs; ++run) {
    const int last = codes[3 * Runs + run];
    for (int line = 0; line < 3; ++line) {
      const int two = last >> (2 * line) & 3;
      lines[kGroupRows * (Runs * line + run) + row] =
          static_cast<std::byte>(codes[Runs * line + run] | two << 6);
    }
  }
}

template <class Group>
void place_six_bits(const std::byte* block, std::byte* unit, int row) {
  copy_half(block, unit + Group::kScale, row);
  copy_half(block + 2, unit + Group::kMinimum, row);
  std::uint8_t codes[16];  // scales, then minima, of eight runs
  six_bit_codes(block + 4, codes);
  place_sixes<4>(codes, unit + Group::kScales, row);
}
void place_scales(Q4KGroup, const std::byte* blocks, std::byte* unit, std::byte*, int row) {
  place_six_bits<Q4KGroup>(blocks, unit, row);
}
void place_scales(Q5KGroup, const std::byte* blocks, std::byte* unit, std::byte*, int row) {
  place_six_bits<Q5KGroup>(blocks, unit, row);
}

/// Sixteen bytes, one for each run.
void place_bytes(const std::byte* stored, std::byte* lines, int row) {
  for (int run = 0; run < 16; ++run) lines[kGroupRows * run + row] = stored[run];
}

void place_scales(Q6KGroup, const std::byte* block, std::byte* unit, std::byte* front, int row) {
  copy_half(block + 208, front, row);
  place_bytes(block + 192, unit + Q6KGroup::kScales, row);
}

void place_scales(Q2KGroup, const std::byte* block, std::byte* unit, std::byte*, int row) {
  copy_half(block + Q2K::kScale, unit + Q2KGroup::kScale, row);
  copy_half(block + Q2K::kMinimum, unit + Q2KGroup::kMinimum, row);
  place_bytes(block, unit + Q2KGroup::kScales, row);
}

void place_scales(Q3KGroup, const std::byte* block, std::byte* unit, std::byte* front, int row) {
  copy_half(block + Q3K::kScale, front, row);
  std::uint8_t codes[16];
  Q3K::six_bits(block, codes);
  place_sixes<4>(codes, unit + Q3KGroup::kScales, row);
}

void place_scales(Iq4XsGroup, const std::byte* block, std::byte* unit, std::byte*, int row) {
  copy_half(block, unit + Iq4XsGroup::kScale, row);
  std::uint8_t codes[8];
  IQ4_XS::six_bits(block, codes);
  place_sixes<2>(codes, unit + Iq4XsGroup::kScales, row);
}

template <class Group>
std::size_t bytes_of(std::int64_t n) {
  return static_cast<std::size_t>(front_bytes<Group>(n) + n / Group::kElements * Group::kBytes);
}

template <class Group>
void pack(const std::byte* rows, std::int64_t count, std::int64_t n, std::byte* group) {
  using Block = typename Group::Block;
  constexpr int kStored = Group::kElements / Block::kElements * Block::kBytes;
  std::memset(group, 0, bytes_of<Group>(n));
  std::byte* front = group;
  std::byte* unit = group + front_bytes<Group>(n);
  const std::int64_t row_bytes = n / Block::kElements * Block::kBytes;
  if (HEADWATER_SABOTAGE("runtime.groups.last_row_dropped") && count < kRowsOfGroup) --count;
  const bool narrow = HEADWATER_SABOTAGE("runtime.groups.row_offset_in_16_bits");
  for (std::int64_t i = 0; i < n / Group::kElements; ++i) {
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int64_t at = row * row_bytes + i * kStored;
      const std::byte* const blocks = rows + (narrow ? at & 0xFFFF : at);
      place_scales(Group(), blocks, unit, front, static_cast<int>(row));
      place_codes<Group>(blocks, unit, static_cast<int>(row));
    }
    unit += Group::kBytes;
    front += 2 * kGroupRows;
  }
}

bool finite_half(const std::byte* p) { return (load_u16(p) & 0x7C00) != 0x7C00; }

bool finite_scales(Q6KGroup, const std::byte* block) { return finite_half(block + 208); }
bool finite_scales(Q3KGroup, const std::byte* block) { return finite_half(block + Q3K::kScale); }
bool finite_scales(Q2KGroup, const std::byte* block) {
  return finite_half(block + Q2K::kScale) && finite_half(block + Q2K::kMinimum);
}
bool finite_scales(Mxfp4Group, const std::byte* block) { return byte_at(block, 0) <= MXFP4::kLargest; }
template <class Group>
bool finite_scales(Group, const std::byte* block) {
  return finite_half(block) && (!Group::Block::kMinima || finite_half(block + 2));
}

const GroupKernels& kernels() {
  assert(row_kernels().groups != nullptr);
  return *row_kernels().groups;
}

}  // namespace

bool packs_in_groups(TensorType type, std::int64_t n) {
  if (!is_quantised(type) || row_kernels().groups == nullptr) return false;
  return with_layout(type, [n](auto group) { return n % decltype(group)::kElements == 0; });
}

std::size_t group_bytes(TensorType type, std::int64_t n) {
  return with_layout(type, [n](auto group) { return bytes_of<decltype(group)>(n); });
}

void pack_group(TensorType type, const std::byte* rows, std::int64_t count, std::int64_t n,
                std::byte* group) {
  assert(count >= 0 && count <= kRowsOfGroup);
  with_layout(type, [&](auto layout) { pack<decltype(layout)>(rows, count, n, group); });
}

bool quantised_row_is_finite(TensorType type, const std::byte* row, std::int64_t n) {
  return with_layout(type, [&](auto layout) {
    using Block = typename decltype(layout)::Block;
    for (std::int64_t i = 0; i < n / Block::kElements; ++i) {
      if (!finite_scales(layout, row + i * Block::kBytes)) return false;
    }
    return true;
  });
}

std::size_t arranged_for_groups_bytes(std::int64_t n) {
  return static_cast<std::size_t>((n / kFixedRun * GroupRun::kBytes + kLine - 1) / kLine * kLine);
}

void arrange_for_groups(TensorType type, const FixedRow& x, std::int64_t n, std::byte* memory) {
  kernels().arrange[static_cast<std::size_t>(type)](x, n, memory);
}

void dot_group(TensorType type, const std::byte* group, std::int64_t n, std::span<const std::byte* const> x,
               float* out, std::int64_t stride) {
  const auto dot = kernels().dot[static_cast<std::size_t>(type)];
  for (std::size_t i = 0; i < x.size(); i += kGroupRowsAtOnce) {
    const std::size_t rows = std::min<std::size_t>(kGroupRowsAtOnce, x.size() - i);
    const std::size_t from = HEADWATER_SABOTAGE("runtime.groups.first_rows_again") ? 0 : i;
    dot(group, n, x.data() + from, static_cast<int>(rows), out + static_cast<std::int64_t>(i) * stride,
        stride);
  }
}

void widen_group(TensorType type, const std::byte* group, std::int64_t n, std::uint32_t* to,
                 std::int64_t stride) {
  kernels().widen[static_cast<std::size_t>(type)](group, n, to, stride);
}

void widen_group_bf16(TensorType type, const std::byte* group, std::int64_t n, std::uint32_t* to,
                      std::int64_t stride) {
  kernels().widen_bf16[static_cast<std::size_t>(type)](group, n, to, stride);
}

}  // namespace headwater::runtime
