#include "trie/sha256.h"

#include "trie/error.h"

#include <openssl/evp.h>

namespace token_trie {
namespace {

void require(bool done) {
    if (!done) {
        throw Error(Status::internal, "libcrypto could not compute SHA-256");
    }
}

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

}  // namespace token_trie
