#include "runtime/grammar/builder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "headwater/error.hpp"

namespace headwater::runtime {
namespace {

constexpr char32_t kLastCharacter = 0x10FFFF;
constexpr char32_t kBeforeSurrogates = 0xD7FF, kAfterSurrogates = 0xE000;
constexpr std::size_t kRowSize = 64;  // a row has the size of so many instructions, roughly

/// How much of first .. last is in the set.
enum class Share : std::uint8_t { none, some, all };
Share share_of(const CharacterSet& set, char32_t first, char32_t last) {
  const auto after = std::upper_bound(set.begin(), set.end(), last,
                                      [](char32_t c, const auto& range) { return c < range.first; });
  if (after == set.begin() || std::prev(after)->second < first) return Share::none;
  return std::prev(after)->first <= first && last <= std::prev(after)->second ? Share::all : Share::some;
}

}  // namespace

CharacterSet normalised(const CharacterSet& set) {
  CharacterSet scalars;
  for (const auto& [first, last] : set) {
    scalars.emplace_back(first, std::min(last, kBeforeSurrogates));
    scalars.emplace_back(std::max(first, kAfterSurrogates), std::min(last, kLastCharacter));
  }
  std::erase_if(scalars, [](const auto& range) { return range.first > range.second; });
  std::sort(scalars.begin(), scalars.end());
  CharacterSet apart;
  for (const auto& range : scalars) {
    if (!apart.empty() && range.first <= apart.back().second + 1) {
      apart.back().second = std::max(apart.back().second, range.second);
    } else {
      apart.push_back(range);
    }
  }
  return apart;
}

CharacterSet complement(const CharacterSet& set) {
  CharacterSet rest;
  char32_t next = 0;
  for (const auto& [first, last] : normalised(set)) {
    if (first > next) rest.emplace_back(next, first - 1);
    next = last + 1;
  }
  rest.emplace_back(next, kLastCharacter);
  return normalised(rest);
}

void GrammarBuilder::charge(std::size_t size) {
  size_ += size;
  if (size_ <= Grammar::kMostSize) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("the grammar is too large when its repetitions are written out; allowed: about {} steps",
                  Grammar::kMostSize));
}

GrammarBuilder::Node GrammarBuilder::add(Part part) {
  charge(1 + part.text.size() + part.parts.size());
  parts_.push_back(std::move(part));
  return static_cast<Node>(parts_.size() - 1);
}

GrammarBuilder::Node GrammarBuilder::literal(std::string_view bytes) {
  return add({Kind::literal, std::string(bytes)});
}

GrammarBuilder::Node GrammarBuilder::sequence(std::vector<Node> parts) {
  return add({Kind::sequence, {}, std::move(parts)});
}

GrammarBuilder::Node GrammarBuilder::choice(std::vector<Node> parts) {
  return add({Kind::choice, {}, std::move(parts)});
}

GrammarBuilder::Node GrammarBuilder::repeat(Node part, std::int64_t least, std::int64_t most) {
  return add({Kind::repeat, {}, {part}, least, most});
}

GrammarBuilder::Node GrammarBuilder::call(Rule rule) { return add({Kind::call, {}, {}, 0, 0, rule}); }

GrammarBuilder::Rule GrammarBuilder::declare() {
  charge(1);
  bodies_.push_back(-1);
  return static_cast<Rule>(bodies_.size() - 1);
}

GrammarBuilder::Node GrammarBuilder::shared(Node body) {
  const Rule rule = declare();
  define(rule, body);
  return call(rule);
}

GrammarBuilder::Node GrammarBuilder::set(CharacterSet set) {
  set = normalised(set);
  charge(set.size());
  if (set.empty()) return choice({});
  const auto [found, added] = sets_.try_emplace(std::move(set), Grammar::kNone);
  if (added) {
    const CharacterSet& characters = found->first;
    Grammar::Row first{};
    for (char32_t c = 0; c < 0x80; ++c) {
      if (share_of(characters, c, c) == Share::all) first[c] = Grammar::kWhole;
    }
    // Lead bytes of two, three and four (the Unicode Standard, table 3-6); what of them is ill-formed is in no set or below.
    for (char32_t lead = 0xC2; lead < 0xE0; ++lead) first[lead] = row_of(characters, (lead & 0x1FU) << 6U, 1);
    for (char32_t lead = 0xE0; lead < 0xF0; ++lead)
      first[lead] = row_of(characters, (lead & 0x0FU) << 12U, 2);
    for (char32_t lead = 0xF0; lead < 0xF5; ++lead)
      first[lead] = row_of(characters, (lead & 0x07U) << 18U, 3);
    found->second = row(first);
  }
  return add({Kind::set, {}, {}, 0, 0, found->second});
}

std::uint16_t GrammarBuilder::row_of(const CharacterSet& set, char32_t first, int rest) {
  constexpr std::array<char32_t, 4> kShortest = {0, 0x80, 0x800,
                                                 0x10000};  // with so many bytes behind the lead
  const char32_t size = char32_t{1} << (6U * static_cast<unsigned>(rest));
  const Share share = share_of(set, first, first + size - 1);
  if (share == Share::none) return Grammar::kNone;
  // An encoding that is longer than needed is ill-formed.
  const char32_t shortest = rest > 1 && first == 0 ? kShortest[static_cast<std::size_t>(rest)] : 0;
  std::uint16_t& all = all_[static_cast<std::size_t>(rest)];  // the row where every byte may follow
  const bool every = share == Share::all && shortest == 0;
  if (every && all != Grammar::kNone) return all;
  charge(1);
  Grammar::Row here{};
  for (char32_t c = 0; c < 64; ++c) {
    const char32_t from = first + c * (size >> 6U);
    if (from < shortest) continue;
    const bool last = rest == 1;
    if (last && share_of(set, from, from) == Share::all) here[0x80 + c] = Grammar::kWhole;
    if (!last) here[0x80 + c] = row_of(set, from, rest - 1);
  }
  // Of a lead byte only encodings that are too long may be in the set.
  if (here == Grammar::Row{}) return Grammar::kNone;
  const std::uint16_t made = row(here);
  if (every) all = made;
  return made;
}

std::uint16_t GrammarBuilder::row(const Grammar::Row& row) {
  std::vector<Grammar::Row>& rows = grammar_->rows;
  rows.resize(std::max<std::size_t>(rows.size(), 2));
  const auto [found, added] = rows_.try_emplace(row, static_cast<std::uint16_t>(rows.size()));
  if (added) {
    charge(kRowSize);  // so there are far fewer than 2^16
    rows.push_back(row);
  }
  return found->second;
}

std::size_t GrammarBuilder::emit(Grammar::Instruction instruction) {
  charge(1);
  program().push_back(instruction);
  return program().size() - 1;
}

/// As deep as the text's brackets are, which its reader bounds.
void GrammarBuilder::emit(Node node) {
  using Instruction = Grammar::Instruction;
  charge(1);
  const Part& part = parts_[static_cast<std::size_t>(node)];
  switch (part.kind) {
    case Kind::literal:
      for (const char c : part.text) emit({Instruction::Kind::byte, static_cast<std::uint8_t>(c)});
      return;
    case Kind::set: emit({Instruction::Kind::character, part.index}); return;
    case Kind::call: emit({Instruction::Kind::call, part.index}); return;
    case Kind::sequence:
      for (const Node one : part.parts) emit(one);
      return;
    case Kind::choice: {
      if (part.parts.empty()) emit({Instruction::Kind::fail});
      std::vector<std::size_t> ends;
      for (std::size_t i = 0; i < part.parts.size(); ++i) {
        const bool last = i + 1 == part.parts.size();
        std::size_t split = 0;
        if (!last) split = emit({Instruction::Kind::split});
        if (!last) aim(split, program().size());
        emit(part.parts[i]);
        if (last) break;
        ends.push_back(emit({Instruction::Kind::jump}));
        program()[split].second = static_cast<std::int32_t>(program().size());
      }
      for (const std::size_t end : ends) aim(end, program().size());
      return;
    }
    case Kind::repeat: {
      for (std::int64_t i = 0; i < part.least; ++i) emit(part.parts[0]);
      if (part.most == kUnlimited) {
        const std::size_t split = emit({Instruction::Kind::split});
        aim(split, program().size());
        emit(part.parts[0]);
        emit({Instruction::Kind::jump, static_cast<std::int32_t>(split)});
        program()[split].second = static_cast<std::int32_t>(program().size());
        return;
      }
      std::vector<std::size_t> splits;
      for (std::int64_t i = part.least; i < part.most; ++i) {
        splits.push_back(emit({Instruction::Kind::split}));
        aim(splits.back(), program().size());
        emit(part.parts[0]);
      }
      for (const std::size_t split : splits)
        program()[split].second = static_cast<std::int32_t>(program().size());
      return;
    }
  }
}

/// From the ends of the rules backwards.
void GrammarBuilder::find_alive() {
  using Step = Grammar::Instruction::Kind;
  const std::vector<Grammar::Instruction>& program = grammar_->program;
  std::vector<bool>& alive = grammar_->alive;
  alive.assign(program.size(), false);
  const auto at = [](std::int32_t index) { return static_cast<std::size_t>(index); };
  // Who waits for an instruction: those before it, and calls for the entry of a rule.
  std::vector<std::vector<std::size_t>> waiting(program.size());
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const auto& [kind, first, second] = program[i];
    if (kind == Step::byte || kind == Step::character || kind == Step::call) waiting[i + 1].push_back(i);
    if (kind == Step::jump || kind == Step::split) waiting[at(first)].push_back(i);
    if (kind == Step::split) waiting[at(second)].push_back(i);
    if (kind == Step::call) waiting[at(grammar_->entries[at(first)])].push_back(i);
    if (kind == Step::leave) found.push_back(i);
  }
  while (!found.empty()) {
    const std::size_t i = found.back();
    found.pop_back();
    const auto& [kind, first, second] = program[i];
    const bool callable = kind != Step::call || (alive[i + 1] && alive[at(grammar_->entries[at(first)])]);
    if (alive[i] || !callable) continue;
    alive[i] = true;
    found.insert(found.end(), waiting[i].begin(), waiting[i].end());
  }
}

std::shared_ptr<const Grammar> GrammarBuilder::build() {
  using Step = Grammar::Instruction::Kind;
  for (const Node body : bodies_) {
    grammar_->entries.push_back(static_cast<std::int32_t>(program().size()));
    emit(body);
    emit({Step::leave});
  }
  for (std::size_t i = 0; i < program().size(); ++i) {
    if (program()[i].kind != Step::call) continue;
    std::size_t next = i + 1;
    for (int hops = 0; hops < 64 && program()[next].kind == Step::jump; ++hops)
      next = static_cast<std::size_t>(program()[next].first);
    program()[i].second = program()[next].kind == Step::leave ? 1 : 0;
  }
  find_alive();
  if (!grammar_->alive[static_cast<std::size_t>(grammar_->entries[0])])
    throw Error(ErrorCode::invalid_argument, "the grammar matches no text; allowed: one that ends somewhere");
  return std::move(grammar_);
}

}  // namespace headwater::runtime
