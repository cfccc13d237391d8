#pragma once

#include "abi_model.h"
#include "fuzz.h"

namespace token_trie::fuzz {

// A payload and what has to come of it.
struct PayloadCase {
    std::string json;
    SetModel set;             // a valid one's, options apart
    std::int32_t status = 0;  // token_trie_status
};

PayloadCase read_payload_case(Input & in);
// Reads its set, null for one that is not valid, and then refused as it says.
test::SetHandle set_of(const PayloadCase & payload, const llama_vocab * vocab);

// Options, as a model wants them and as they cross the ABI, where they point into the model's.
struct OptionsCase {
    FollowSet::Options options;
    token_trie_params params{};
    std::uint32_t wrong = 0;  // bits of statuses, as Expected keeps them

    OptionsCase(Input & in, const std::set<Token> & ends, const SetModel & set);
    OptionsCase(const OptionsCase &) = delete;
    OptionsCase & operator=(const OptionsCase &) = delete;
    ~OptionsCase() = default;
};

// Mostly a few tokens; now and then as many as fit, give or take some.
test::Tokens read_tokens(Input & in, std::size_t capacity);
bool in_vocab(const test::Tokens & tokens);

using test::sized;

constexpr std::uint32_t bit_of(std::int32_t status) { return 1U << static_cast<std::uint32_t>(-status); }

// The faults of a call, as statuses: nothing, and it has to succeed.
class Expected {
   public:
    void wrong_if(bool wrong, std::int32_t status);
    void wrong(std::uint32_t bits) { wrong_ |= bits; }
    // It may also come to this, as another thread is at work.
    void may(std::int32_t status);
    // Whether the call succeeded; a finding if it should not have, or should have, or fails without a message.
    bool check(std::int32_t status) const;

   private:
    std::uint32_t wrong_ = 0;
    std::uint32_t may_ = 0;
};

}  // namespace token_trie::fuzz
