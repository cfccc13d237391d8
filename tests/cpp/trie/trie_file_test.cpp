#include "trie/trie_file.h"

#include "support.h"

#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace token_trie::test {
namespace {

class TrieFile : public ::testing::Test {
   protected:
    void SetUp() override { path_ = ::testing::TempDir() + "trie_file_" + std::to_string(getpid()); }
    void TearDown() override { std::remove(path_.c_str()); }

    void write(const std::string & bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
    std::string refusal(const std::string & bytes) const {
        write(bytes);
        const std::string message = message_of([this] { open_trie_file(path_); });
        return message.substr(message.find(": ") + 2);
    }

    std::string path_;
};

std::string image_of(const std::shared_ptr<const Trie> & trie) {
    std::string bytes;
    const TrieImage image(trie);
    for (const std::string_view piece : image.pieces()) {
        bytes.append(piece);
    }
    return bytes;
}

std::shared_ptr<const Trie> letters() {
    return trie_of({{"D", {5}}, {"A", {7}}, {"B", {7, 8, 4}}, {"C", {7, 9}}, {"E", {5}}});
}

TEST_F(TrieFile, AFileIsTheSetThatWasWritten) {
    LeafList unnamed;
    unnamed.tokens = {4, 4, 6};
    unnamed.offsets = {0, 0, 1, 2, 3};
    unnamed.vocab = "sha256:of a vocabulary";
    for (const auto & trie : {letters(), Trie::build(unnamed)}) {
        write(image_of(trie));
        verify_trie_file(path_);
        const auto opened = open_trie_file(path_);
        ASSERT_EQ(opened->n_leaves(), trie->n_leaves());
        EXPECT_EQ(opened->vocab(), trie->vocab());
        EXPECT_EQ(opened->stored_name(0) == nullptr, trie->stored_name(0) == nullptr);
        ASSERT_EQ(opened->aliases().size(), trie->aliases().size());
        for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
            EXPECT_EQ(opened->name(leaf), trie->name(leaf));
            EXPECT_EQ(opened->sequence(leaf), trie->sequence(leaf));
        }
        EXPECT_EQ(image_of(opened), image_of(trie));
    }
}

TEST_F(TrieFile, WhoHasOneOpenKeepsItWhenItIsDeleted) {
    write(image_of(letters()));
    const auto opened = open_trie_file(path_);
    std::remove(path_.c_str());
    EXPECT_EQ(opened->sequence(2), Tokens({7, 8, 4}));
}

TEST_F(TrieFile, WhatIsNoneIsRefusedByName) {
    const std::string good = image_of(letters());
    EXPECT_EQ(refusal(""), "not a file of a trie");
    EXPECT_EQ(refusal("GGUF and more than eight bytes"), "not a file of a trie");
    EXPECT_EQ(refusal(good.substr(0, 100)), "truncated: 100 bytes");
    EXPECT_EQ(refusal(good.substr(0, good.size() - 64)),
              "truncated: " + std::to_string(good.size() - 64) + " bytes of " + std::to_string(good.size()));
    std::string other = good;
    other[8] = 2;
    EXPECT_EQ(refusal(other), "version 2 of the format, where 1 is known; write it anew");
    other = good;
    std::swap(other[12], other[15]);
    EXPECT_EQ(refusal(other), "written in another byte order");
    other = good;
    other[40] = static_cast<char>(other[40] ^ 1);
    EXPECT_EQ(refusal(other), "header: damaged");
    EXPECT_THROW(open_trie_file(path_ + " that is not there"), Error);
    EXPECT_THROW(open_trie_file("/"), Error);
}

TEST_F(TrieFile, DamageOfAnyByteIsRefusedOrFoundByItsChecksum) {
    const std::string good = image_of(letters());
    for (std::size_t at = 0; at < good.size(); ++at) {
        std::string other = good;
        other[at] = static_cast<char>(other[at] ^ 0x10);
        write(other);
        const std::string message = message_of([this] { verify_trie_file(path_); });
        if (message.empty()) {
            EXPECT_EQ(good[at], '\0') << "but for the zeros between parts, of byte " << at;
            EXPECT_EQ(open_trie_file(path_)->sequence(2), Tokens({7, 8, 4}));
        }
    }
}

}  // namespace
}  // namespace token_trie::test
