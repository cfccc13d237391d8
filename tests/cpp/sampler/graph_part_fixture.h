#pragma once

#include "tiny_model.h"

// A chain on the backend or on the host of a tiny model of F32: on the CPU backend, unless a device is visible.
namespace token_trie::test {

inline const FollowSet::Options kEnd = {OnComplete::end, {kTinyEnd}, {}, 0};

// What stands behind the trie in a chain, in this order.
using Behind = std::vector<llama_sampler *>;

inline Sampler trie_sampler(const std::shared_ptr<const Trie> & trie,
                            Mode mode,
                            const FollowSet::Options & options = kEnd) {
    return sampler_of(trie, mode, options);
}

inline Sampler chain_of(const std::vector<llama_sampler *> & members) {
    Sampler chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    for (llama_sampler * member : members) {
        llama_sampler_chain_add(chain.get(), member);
    }
    return chain;
}

// With a tail at the end.
inline Sampler chain_of(Sampler trie, const Behind & behind, std::int32_t n_vocab = kTinyVocab) {
    std::vector<llama_sampler *> members = {trie.get()};
    members.insert(members.end(), behind.begin(), behind.end());
    members.push_back(make_tail(trie.release(), n_vocab));
    return chain_of(members);
}

// A sequence on a context of its own, whose chain is on the backend or on the host.
class Decoder {
   public:
    Decoder(Sampler chain, bool on_backend, TinyKind kind = TinyKind::attention)
        : chain_(std::move(chain)), context_(tiny_context(256, kind)) {
        if (on_backend) {
            EXPECT_TRUE(llama_set_sampler(context_.get(), 0, chain_.get()));
        }
    }
    // From the beginning again, behind this prompt.
    void prefill(Tokens tokens) {
        llama_memory_clear(llama_get_memory(context_.get()), true);
        llama_sampler_reset(chain_.get());
        decode(std::move(tokens));
    }
    Token next() {
        const Token token = llama_sampler_sample(chain_.get(), context_.get(), -1);
        decode({token});
        return token;
    }
    Tokens next(std::size_t n) {
        Tokens out;
        while (out.size() < n) {
            out.push_back(next());
        }
        return out;
    }
    // Until the span is over.
    Tokens decide() {
        Tokens out;
        while (view(trie()).cursor->is_active() && out.size() < 64) {
            out.push_back(next());
        }
        return out;
    }
    llama_sampler * trie() const {
        std::int32_t at = 0;
        while (llama_sampler_name(llama_sampler_chain_get(chain_.get(), at)) != std::string("token-trie")) {
            ++at;
        }
        return llama_sampler_chain_get(chain_.get(), at);
    }
    llama_context * context() const { return context_.get(); }

   private:
    void decode(Tokens tokens) {
        ASSERT_EQ(
            llama_decode(context_.get(), llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()))),
            0);
    }

    Sampler chain_;
    Context context_;  // goes before the chain, which it borrows
};

// Over few bytes, so that prefixes and repeats abound.
inline std::shared_ptr<const Trie> random_trie(std::mt19937 & rng) {
    std::set<Tokens> members;
    for (const Tokens & member : random_members(rng, 1 + rng() % 40, 4, 12)) {
        Tokens shifted;
        for (const Token token : member) {
            shifted.push_back(bytes("a")[0] + token);
        }
        members.insert(std::move(shifted));
    }
    return unnamed_trie_of(members);
}

inline Tokens random_prompt(std::mt19937 & rng) {
    Tokens out(1 + rng() % 5);
    for (Token & token : out) {
        token = 3 + static_cast<Token>(rng() % 256);
    }
    return out;
}

}  // namespace token_trie::test
