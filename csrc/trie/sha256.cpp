#include "trie/sha256.h"

#include "trie/error.h"

#include <openssl/evp.h>

#include <cstdint>

namespace token_trie {
namespace {

void require(bool done) { throw_if(!done, Status::internal, "libcrypto could not compute SHA-256"); }

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st * context) const noexcept { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
    require(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::update(const void * data, std::size_t n) { require(EVP_DigestUpdate(context_.get(), data, n) == 1); }

Sha256::Digest Sha256::finish() {
    Digest digest{};
    require(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    return digest;
}

std::string Sha256::finish_text() {
    std::string out = "sha256:";
    for (const unsigned char byte : finish()) {
        constexpr char hex[] = "0123456789abcdef";
        out += hex[byte >> 4U];
        out += hex[byte & 15U];
    }
    return out;
}

void TextsHash::add(std::string_view text) {
    add_number(text.size());
    pending_.append(text);
    constexpr std::size_t piece = 1U << 16U;
    if (pending_.size() >= piece) {
        hash_.update(pending_);
        pending_.clear();
    }
}

void TextsHash::add_number(std::size_t value) {
    const auto v = static_cast<std::uint32_t>(value);
    for (const unsigned shift : {0U, 8U, 16U, 24U}) {
        pending_ += static_cast<char>(v >> shift & 255U);
    }
}

std::string TextsHash::finish() {
    hash_.update(pending_);
    return hash_.finish_text();
}

}  // namespace token_trie
