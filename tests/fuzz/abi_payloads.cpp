#include "abi_payloads.h"

#include "follow_options.h"
#include "tiny_model.h"

#include <array>

namespace token_trie::fuzz {
namespace {

using test::Tokens;

const std::array<Tokens, 16> & palette() {
    static const std::array<Tokens, 16> members = {{{259},
                                                    {259, 260},
                                                    {259, 261},
                                                    {262},
                                                    {262, 260, 261},
                                                    {10},
                                                    {10, 11},
                                                    {10, 12},
                                                    {10, 11, 12},
                                                    {10, 44},
                                                    {2, 10},
                                                    {44},
                                                    {44, 45, 10},
                                                    {2},
                                                    {259, 2},
                                                    {5, 5, 5, 5, 5, 5}}};
    return members;
}

void measure(SetModel & set) {
    std::set<Tokens> nodes;
    for (const Tokens & member : set.members) {
        set.max_length = std::max(set.max_length, member.size());
        for (std::size_t n = 0; n <= member.size(); ++n) {
            nodes.emplace(member.begin(), member.begin() + static_cast<std::ptrdiff_t>(n));
        }
    }
    set.n_nodes = nodes.size();
}

PayloadCase tokens_case(Input & in) {
    PayloadCase out;
    std::vector<test::Leaf> leaves;
    for (std::uint32_t n = 1 + in.below(4); n > 0; --n) {
        const Tokens & tokens = in.one_of(palette());
        leaves.push_back({"m" + std::to_string(n), tokens});
        out.set.members.insert(tokens);
    }
    out.json = test::payload_of(leaves);
    out.set.n_leaves = out.set.members.size();
    return out;
}

PayloadCase refused_case(Input & in) {
    static const std::array<std::pair<const char *, std::int32_t>, 8> cases = {{
        {"", TOKEN_TRIE_ERROR_PAYLOAD},
        {"{", TOKEN_TRIE_ERROR_PAYLOAD},
        {R"({"descriptors": []})", TOKEN_TRIE_ERROR_PAYLOAD},
        {R"({"descriptors": [{"leaves": [{"name": "a", "tokens": []}]}]})", TOKEN_TRIE_ERROR_PAYLOAD},
        {R"({"descriptors": [{"leaves": [{"name": "a", "tokens": [-1]}]}]})", TOKEN_TRIE_ERROR_PAYLOAD},
        {R"({"descriptors": [{"leaves": [{"name": "a", "tokens": [263]}]}]})", TOKEN_TRIE_ERROR_VOCAB},
        {R"({"vocab": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",)"
         R"("descriptors": [{"leaves": [{"name": "a", "tokens": [7]}]}]})",
         TOKEN_TRIE_ERROR_VOCAB},
        {R"({"descriptors": [{"leaves": [{"name": "\u0000", "tokens": [7]}]}]})", TOKEN_TRIE_ERROR_PAYLOAD},
    }};
    const auto & [json, status] = in.one_of(cases);
    return {json, {}, status};
}

}  // namespace

test::SetHandle set_of(const PayloadCase & payload, const llama_vocab * vocab) {
    test::SetHandle set = test::set_of(payload.json, 0, vocab);
    require((set == nullptr ? token_trie_last_status() : TOKEN_TRIE_OK) == payload.status,
            "a payload is read or refused");
    return set;
}

PayloadCase read_payload_case(Input & in) {
    PayloadCase out = in.below(8) == 7 ? refused_case(in) : tokens_case(in);
    measure(out.set);
    return out;
}

OptionsCase::OptionsCase(Input & in, const std::set<Token> & ends, const SetModel & set) {
    static const std::array<Tokens, 6> end_tokens = {{{2}, {5}, {258, 2}, {10, 44}, {}, {263}}};
    static const std::array<Tokens, 10> separators = {
        {{}, {}, {}, {2}, {44, 2}, {44}, {44, 45}, {10}, {259, 259, 259}, {-1}}};
    const std::uint32_t choice = in.byte();
    params.size = sizeof params;
    params.on_complete = choice % 16 == 15 ? 3 : static_cast<std::int32_t>(choice % 3);
    params.mode = choice / 16 == 15 ? 2 : static_cast<std::int32_t>(choice / 16 % 2);
    if (params.on_complete == 3 || params.mode == 2) {
        wrong |= bit_of(TOKEN_TRIE_ERROR_ARGUMENT);
    }
    options.on_complete = static_cast<OnComplete>(params.on_complete % 3);
    const std::uint32_t rest = in.byte();
    const bool has_ends = options.on_complete != OnComplete::release && rest % 2 == 1;
    if (has_ends) {
        options.end_tokens = end_tokens[rest / 2 % end_tokens.size()];
    } else if (options.on_complete != OnComplete::release) {
        options.end_tokens.assign(ends.begin(), ends.end());
    }
    if (options.on_complete == OnComplete::restart || rest >= 240) {
        options.separator = separators[rest / 16 % separators.size()];
        options.max_items = static_cast<std::int32_t>(in.below(5)) - (rest == 255 ? 5 : 0);
        const std::uint32_t list = in.byte();
        options.unique = list % 2 == 1;
        options.min_items = static_cast<std::int32_t>(list / 2 % 4) - (list == 255 ? 4 : 0);
    }
    // Anything but null, where they are none.
    params.end_tokens = !has_ends ? nullptr : options.end_tokens.empty() ? &test::kTinyEnd : options.end_tokens.data();
    params.n_end_tokens = has_ends ? options.end_tokens.size() : 0;
    params.separator = options.separator.data();
    params.n_separator = options.separator.size();
    params.max_items = options.max_items;
    params.min_items = options.min_items;
    params.unique = options.unique ? 1 : 0;
    if (!are_valid(options, set.n_leaves)) {
        wrong |= bit_of(TOKEN_TRIE_ERROR_ARGUMENT);
    }
    for (const Tokens * tokens : {&options.end_tokens, &options.separator}) {
        if (std::any_of(tokens->begin(), tokens->end(), [](Token t) { return t >= test::kTinyVocab; })) {
            wrong |= bit_of(TOKEN_TRIE_ERROR_VOCAB);
        }
    }
}

Tokens read_tokens(Input & in, std::size_t capacity) {
    const std::uint32_t how = in.byte();
    Tokens out(how >= 250 ? capacity + how - 253 : how >= 200 ? 8 + 2 * (how - 200) : how % 8);
    auto token = static_cast<Token>(3 + how % 4);
    for (Token & t : out) {
        token = out.size() < 8 ? static_cast<Token>(in.byte()) : token % 200 + 3;
        t = token == 255 ? test::kTinyVocab : token;
    }
    return out;
}

bool in_vocab(const Tokens & tokens) {
    return std::all_of(tokens.begin(), tokens.end(), [](Token t) { return t >= 0 && t < test::kTinyVocab; });
}

void Expected::wrong_if(bool wrong, std::int32_t status) { wrong_ |= wrong ? bit_of(status) : 0; }

void Expected::may(std::int32_t status) { may_ |= bit_of(status); }

bool Expected::check(std::int32_t status) const {
    if (status == TOKEN_TRIE_OK) {
        require(wrong_ == 0, "a call with something wrong fails");
        return true;
    }
    if (((wrong_ | may_) & bit_of(status)) == 0) {
        std::fprintf(stderr, "status %d: %s\n", status, token_trie_last_error());
    }
    require(((wrong_ | may_) & bit_of(status)) != 0, "a call fails for what is wrong with it");
    require(token_trie_last_status() == status && *token_trie_last_error() != '\0', "a failure leaves its message");
    return false;
}

}  // namespace token_trie::fuzz
