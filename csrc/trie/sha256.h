#pragma once

#include <array>
#include <memory>
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

   private:
    struct Free {
        void operator()(evp_md_ctx_st * context) const noexcept;
    };
    std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace token_trie
