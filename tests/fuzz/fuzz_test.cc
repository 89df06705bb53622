// SPDX-License-Identifier: Apache-2.0
//
// Every fuzz target with its seeds and with mutations of them, in random and repeatable ways.
// varve_fuzz runs the same targets under libFuzzer, which looks for inputs that reach new code.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <random>

#include "tests/fuzz/targets.h"

namespace varve::internal::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string Mutate(std::string input, const std::vector<std::string>& seeds) {
    const size_t changes = 1 + random_() % 4;
    for (size_t i = 0; i < changes; ++i) Change(&input, seeds);
    return input;
  }

 private:
  void Change(std::string* input, const std::vector<std::string>& seeds) {
    constexpr uint64_t kNumbers[] = {0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0xffffffff, ~0ull};
    const size_t at = input->empty() ? 0 : random_() % input->size();
    switch (random_() % 7) {
      case 0:
        if (!input->empty()) (*input)[at] = static_cast<char>(random_());
        return;
      case 1:
        if (!input->empty()) (*input)[at] = static_cast<char>((*input)[at] ^ (1 << random_() % 8));
        return;
      case 2:
        input->erase(at, random_() % 9);
        return;
      case 3:
        input->resize(at);
        return;
      case 4: {
        const uint64_t number = kNumbers[random_() % std::size(kNumbers)];
        const size_t bytes = size_t{1} << random_() % 4;
        for (size_t i = 0; i < bytes && at + i < input->size(); ++i) {
          (*input)[at + i] = static_cast<char>(number >> (8 * i));
        }
        return;
      }
      case 5: {
        const std::string& other = seeds[random_() % seeds.size()];
        if (!other.empty())
          input->insert(at, other.substr(random_() % other.size(), random_() % 32));
        return;
      }
      default:
        if (!input->empty()) input->insert(at, input->substr(random_() % input->size(), 16));
    }
  }

  std::mt19937_64 random_;
};

TEST(FuzzTest, SeedsAndMutationsDoNoHarm) {
  constexpr auto kBudget = std::chrono::milliseconds(150);
  constexpr auto kLongBudget = std::chrono::seconds(60);
  const bool full_size = std::getenv("VARVE_FULL_SIZE") != nullptr;
  constexpr int kMaxRounds = 4000;
  for (const FuzzTarget& target : AllTargets()) {
    SCOPED_TRACE(target.name);
    ASSERT_FALSE(target.seeds.empty());
    Mutator mutator(2026);
    const int least_rounds = target.is_slow ? 5 : 50;
    // libFuzzer runs the others faster.
    const Clock::duration budget = full_size && target.is_slow ? kLongBudget : kBudget;
    const auto start = Clock::now();
    int rounds = 0;
    for (const std::string& seed : target.seeds) target.run(std::as_bytes(std::span(seed)));
    for (; rounds < kMaxRounds; ++rounds) {
      if (rounds >= least_rounds && Clock::now() - start > budget) break;
      const auto& seed = target.seeds[static_cast<size_t>(rounds) % target.seeds.size()];
      const std::string input = mutator.Mutate(seed, target.seeds);
      const double before = ProcessorSeconds();
      target.run(std::as_bytes(std::span(input)));
      ASSERT_LT(ProcessorSeconds() - before, target.most_seconds()) << "round " << rounds;
    }
    std::cout << target.name << ": " << rounds << " mutations of " << target.seeds.size()
              << " seeds\n";
  }
}

// A reference that is four bytes off makes a vector of numbers of eight bytes begin where none may
// be read. Random mutations hardly ever do this.
TEST(FuzzTest, ReferencesThatAreFourBytesOffDoNoHarm) {
  constexpr size_t kMaxWords = 200;  // records and small files are shorter
  for (const FuzzTarget& target : AllTargets()) {
    if (target.is_slow) continue;  // it reads its input byte by byte
    SCOPED_TRACE(target.name);
    for (const std::string& seed : target.seeds) {
      const size_t num_words = std::min(seed.size() / sizeof(uint32_t), kMaxWords);
      for (size_t word = 0; word < num_words; ++word) {
        for (const uint32_t change : {4u, ~0u - 3}) {
          std::string input = seed;
          uint32_t number;
          std::memcpy(&number, input.data() + word * sizeof(number), sizeof(number));
          number += change;
          std::memcpy(input.data() + word * sizeof(number), &number, sizeof(number));
          target.run(std::as_bytes(std::span(input)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace varve::internal::fuzz
