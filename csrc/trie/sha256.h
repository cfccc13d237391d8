#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace token_trie {

// SHA-256 of bytes that come in pieces, by OpenSSL's libcrypto. Throws Error (internal) if libcrypto refuses.
class Sha256 {
   public:
    using Digest = std::array<unsigned char, 32>;

    Sha256();
    void update(const void * data, std::size_t n);
    void update(std::string_view text) { update(text.data(), text.size()); }
    Digest finish();
    // The same as "sha256:" and 64 hex digits.
    std::string finish_text();

   private:
    struct Free {
        void operator()(evp_md_ctx_st * context) const noexcept;
    };
    std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Fingerprint of a list of texts: "sha256:" and 64 hex digits, over their number and then the length and the bytes of
// each, numbers as 32-bit little-endian.
class TextsHash {
   public:
    explicit TextsHash(std::size_t n_texts) { add_number(n_texts); }
    void add(std::string_view text);
    std::string finish();

   private:
    void add_number(std::size_t value);

    Sha256 hash_;
    std::string pending_;  // hashed in large pieces, as texts are small
};

}  // namespace token_trie
