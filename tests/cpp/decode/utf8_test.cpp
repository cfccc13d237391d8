#include "decode/text.h"

#include <gtest/gtest.h>

namespace token_trie::test {
namespace {

const std::string kReplacement = "\xEF\xBF\xBD";

TEST(Utf8Stream, ACharacterComesOutWithItsLastByte) {
    Utf8Stream stream;
    EXPECT_EQ(stream.feed("a\xC3"), "a");
    EXPECT_EQ(stream.feed("\xA9"), "\xC3\xA9");
    EXPECT_EQ(stream.feed("\xF0\x9F"), "");
    EXPECT_EQ(stream.feed("\x98"), "");
    EXPECT_EQ(stream.feed("\x80z"), "\xF0\x9F\x98\x80z");
}

TEST(Utf8Stream, SplitAnywhereTheTextIsTheSame) {
    const std::string text = "a\u00e9\u07ff\u0800\u20ac\ud7ff\uffff\U00010000\U0001F600\U0010FFFFz";
    for (std::size_t i = 0; i <= text.size(); ++i) {
        for (std::size_t k = i; k <= text.size(); ++k) {
            Utf8Stream stream;
            std::string out = stream.feed(text.substr(0, i));
            out += stream.feed(text.substr(i, k - i));
            out += stream.feed(text.substr(k));
            ASSERT_EQ(out, text) << i << ", " << k;
        }
    }
}

// A decoder sees whole characters of each piece, and no more is held back than one that is under way.
TEST(Utf8Stream, NothingCompleteIsHeldBack) {
    const std::string text = "\u00e9\u20ac\U0001F600";
    const std::size_t complete_at[] = {0, 0, 2, 2, 2, 5, 5, 5, 5, 9};
    Utf8Stream stream;
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        out += stream.feed(text.substr(i, 1));
        EXPECT_EQ(out.size(), complete_at[i + 1]) << "byte " << i;
    }
}

// The substitution of maximal subparts that Unicode (3.9, D93b) recommends.
TEST(Utf8Stream, WhatCanBeNoCharacterIsReplaced) {
    const auto all = [](const std::string & bytes) {
        Utf8Stream stream;
        std::string out;
        for (const char byte : bytes) {
            out += stream.feed({&byte, 1});
        }
        Utf8Stream at_once;
        EXPECT_EQ(at_once.feed(bytes), out) << "in one piece or in many";
        return out;
    };
    const std::string r = kReplacement;
    EXPECT_EQ(all("a\x80z"), "a" + r + "z");
    EXPECT_EQ(all("\xC0\xAFz"), r + r + "z") << "an overlong slash";
    EXPECT_EQ(all("\xC3z"), r + "z");
    EXPECT_EQ(all("\xE2\x82z"), r + "z");
    EXPECT_EQ(all("\xE0\x9F\xBFz"), r + r + r + "z") << "overlong";
    EXPECT_EQ(all("\xED\xA0\x80z"), r + r + r + "z") << "a surrogate";
    EXPECT_EQ(all("\xF0\x9F\x98z"), r + "z");
    EXPECT_EQ(all("\xF4\x90\x80\x80z"), r + r + r + r + "z") << "over U+10FFFF";
    EXPECT_EQ(all("\xF5\xFFz"), r + r + "z");
    EXPECT_EQ(all("\xE2\xE2\x82\xAC"), r + "\u20ac");
}

TEST(Utf8Stream, AResetForgetsWhatWasHeldBack) {
    Utf8Stream stream;
    EXPECT_EQ(stream.feed("\xC3"), "");
    stream.reset();
    EXPECT_EQ(stream.feed("a"), "a");
}

TEST(Utf8Stream, ANulIsACharacter) {
    Utf8Stream stream;
    EXPECT_EQ(stream.feed(std::string_view("a\0b", 3)), std::string("a\0b", 3));
}

}  // namespace
}  // namespace token_trie::test
