#include "support.h"
#include "trie/lexicon.h"

#include <algorithm>
#include <map>

namespace token_trie::test {
namespace {

using Texts = std::vector<std::string>;

LeafList text_list(const std::vector<std::pair<std::string, std::string>> & leaves) {
    LeafList out;
    for (const auto & [name, text] : leaves) {
        for (const char byte : text) {
            out.tokens.push_back(static_cast<unsigned char>(byte));
        }
        out.end_leaf();
        out.names.push_back(name);
    }
    return out;
}

std::shared_ptr<const Trie> graph_of(const Texts & texts, const Texts & pieces) {
    std::vector<std::pair<std::string, std::string>> leaves;
    for (const std::string & text : texts) {
        leaves.emplace_back(text, text);
    }
    return Trie::build(text_list(leaves), Lexicon(pieces, "sha256:some"));
}

// The definition, word for word: every sequence of tokens whose bytes, put together, are the text.
// NOLINTNEXTLINE(misc-no-recursion): as deep as a test's text is long
void spell(const std::string & text, const Texts & pieces, Tokens & begun, std::set<Tokens> & out) {
    if (text.empty()) {
        out.insert(begun);
        return;
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!pieces[i].empty() && text.compare(0, pieces[i].size(), pieces[i]) == 0) {
            begun.push_back(static_cast<Token>(i));
            spell(text.substr(pieces[i].size()), pieces, begun, out);
            begun.pop_back();
        }
    }
}

std::set<Tokens> spellings(const std::string & text, const Texts & pieces) {
    std::set<Tokens> out;
    Tokens begun;
    spell(text, pieces, begun, out);
    return out;
}

// Every sequence that the graph takes to a leaf, and the name of that leaf.
// NOLINTNEXTLINE(misc-no-recursion): as deep as a test's text is long
void collect(const Trie & trie, NodeId node, Tokens & begun, std::map<Tokens, std::string> & out) {
    if (trie.leaf(node) != kNoLeaf) {
        out[begun] = trie.name(trie.leaf(node));
    }
    const TokenSpan children = trie.children(node);
    EXPECT_TRUE(std::is_sorted(children.begin(), children.end()));
    EXPECT_TRUE(std::adjacent_find(children.begin(), children.end()) == children.end());
    EXPECT_TRUE(trie.leaf(node) != kNoLeaf || !children.empty()) << "a dead end";
    for (const Token token : children) {
        begun.push_back(token);
        collect(trie, trie.child(node, token), begun, out);
        begun.pop_back();
    }
}

std::map<Tokens, std::string> sequences_of(const Trie & trie) {
    std::map<Tokens, std::string> out;
    Tokens begun;
    collect(trie, kRoot, begun, out);
    return out;
}

// The vocabulary drawn in trie.h; the first token spells nothing.
const Texts kTiny = {"", "a", "b", "c", "ab", "bc"};

TEST(Graph, HoldsEverySpellingOfItsText) {
    const auto trie = graph_of({"abc"}, kTiny);
    EXPECT_FALSE(trie->is_tree());
    ASSERT_EQ(trie->n_nodes(), 4U);
    EXPECT_EQ(trie->n_leaves(), 1U);
    EXPECT_EQ(Tokens(trie->children(0).begin(), trie->children(0).end()), Tokens({1, 4}));
    EXPECT_EQ(trie->child(0, 4), 2U);
    EXPECT_EQ(trie->child(1, 2), 2U);
    EXPECT_EQ(trie->child(1, 5), 3U);
    EXPECT_EQ(trie->child(2, 3), 3U);
    EXPECT_EQ(trie->child(0, 2), kNoNode);
    EXPECT_EQ(trie->leaf(3), 0U);
    EXPECT_EQ(trie->text(0), "abc");
    EXPECT_EQ(trie->name(0), "abc");
    EXPECT_EQ(trie->vocab(), "sha256:some");
    EXPECT_EQ(trie->max_token(), 5);
}

// Lists without repeats over random texts and vocabularies: what is allowed is what begins, in any spelling, a text
// that is left.
TEST(Graph, ATextThatIsTakenIsOutInEverySpelling) {
    constexpr Token comma = 90;
    constexpr Token end = 91;
    for (unsigned seed = 1; seed <= 300; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::mt19937 rng(seed);
        const auto text = [&rng](std::size_t n) {
            std::string out;
            for (n = 1 + rng() % n; n > 0; --n) {
                out.push_back("abc"[rng() % 3]);
            }
            return out;
        };
        std::set<std::string> pieces = {"a", "b", "c"};
        std::set<std::string> texts;
        for (int i = 0; i < 8; ++i) {
            pieces.insert(text(3));
            texts.insert(text(5));
        }
        const Texts vocabulary(pieces.begin(), pieces.end());
        std::set<std::string> left = texts;
        FollowSet::Options options{OnComplete::restart, {end}, {comma}, 0};
        options.unique = true;
        if (texts.size() > 1 && seed % 2 == 0) {
            options.exclude = {*texts.begin()};
            left.erase(*texts.begin());
        }
        const auto trie = graph_of({texts.begin(), texts.end()}, vocabulary);
        Cursor cursor(trie, std::make_shared<const FollowSet>(*trie, options));
        Tokens item;
        while (cursor.state() == State::constrained) {
            std::set<Token> expected;
            for (const std::string & one : left) {
                for (const Tokens & spelling : spellings(one, vocabulary)) {
                    if (spelling.size() > item.size() && std::equal(item.begin(), item.end(), spelling.begin())) {
                        expected.insert(spelling[item.size()]);
                    } else if (spelling == item) {
                        expected.insert(end);
                        if (left.size() > 1) {
                            expected.insert(comma);
                        }
                    }
                }
            }
            std::set<Token> seen;
            cursor.allowed().for_each([&](Token token) { return seen.insert(token).second; });
            ASSERT_EQ(seen, expected);
            // To the last text there is.
            if (left.size() > 1) {
                expected.erase(end);
            }
            const Token token = *std::next(expected.begin(), static_cast<std::ptrdiff_t>(rng() % expected.size()));
            if (token == comma) {
                ASSERT_EQ(left.erase(trie->name(cursor.leaf())), 1U);
                item.clear();
            } else {
                item.push_back(token);
            }
            ASSERT_TRUE(cursor.accept(token));
        }
        EXPECT_EQ(left.size(), 1U);
    }
}

TEST(Graph, ItsLengthsAreThoseOfTheShortestAndTheLongestSpelling) {
    const auto trie = graph_of({"abc", "a"}, kTiny);
    EXPECT_EQ(trie->sequence(0).size(), 2U);
    EXPECT_EQ(spellings("abc", kTiny).count(trie->sequence(0)), 1U);
    EXPECT_EQ(trie->sequence(1), Tokens({1}));
    EXPECT_EQ(trie->max_length(), 3U);
    EXPECT_EQ(trie->n_tokens(), 3U);
}

TEST(Graph, ATextMayBeTheBeginningOfAnother) {
    const auto trie = graph_of({"abc", "ab"}, kTiny);
    const Tokens whole = {4};
    const NodeId node = trie->descend(whole.data(), 1);
    EXPECT_EQ(trie->name(trie->leaf(node)), "ab");
    EXPECT_EQ(trie->children(node).size, 1U);
}

TEST(Graph, TokensOfEqualBytesAreBothThere) {
    const auto trie = graph_of({"a"}, {"a", "b", "a"});
    EXPECT_EQ(Tokens(trie->children(kRoot).begin(), trie->children(kRoot).end()), Tokens({0, 2}));
    EXPECT_EQ(trie->child(kRoot, 0), trie->child(kRoot, 2));
}

TEST(Graph, ACharacterMayBeSplitBetweenTokens) {
    const Texts pieces = {"\xE2", "\x82", "\xAC", "\xE2\x82", "\x82\xAC", "\xAC!", "!"};
    const auto trie = graph_of({"\u20AC!", "\u20AC"}, pieces);
    std::set<Tokens> expected = spellings("\u20AC!", pieces);
    expected.merge(spellings("\u20AC", pieces));
    std::set<Tokens> seen;
    for (const auto & [tokens, name] : sequences_of(*trie)) {
        seen.insert(tokens);
    }
    EXPECT_EQ(seen, expected);
}

TEST(Graph, WhatLeadsNowhereIsLeftOut) {
    // "x" begins both, but only the whole "xyz" spells the one: behind "x" and "xy" nothing goes on.
    const auto trie = graph_of({"xyz"}, {"x", "xy", "xyz"});
    EXPECT_EQ(sequences_of(*trie), (std::map<Tokens, std::string>{{{2}, "xyz"}}));
    EXPECT_EQ(trie->n_nodes(), 2U);
}

TEST(Graph, ATextThatNoTokensSpellIsRefusedNamingIt) {
    EXPECT_EQ(message_of([] { graph_of({"ab", "abx"}, kTiny); }),
              R"(leaf "abx": cannot be spelled in this vocabulary)");
    EXPECT_EQ(message_of([] { graph_of({"ab"}, {"b", "a b"}); }), R"(leaf "ab": cannot be spelled in this vocabulary)");
    EXPECT_EQ(message_of([] { Lexicon({"", ""}, ""); }), "no token of this vocabulary spells anything");
}

TEST(Graph, EmptyTextsAreSkippedAndEqualOnesAreOneUnderTheSmallestName) {
    const Lexicon lexicon(kTiny, "");
    const auto trie = Trie::build(text_list({{"nothing", ""}, {"m", "ab"}, {"b", "ab"}, {"other", "c"}}), lexicon);
    ASSERT_EQ(trie->n_leaves(), 2U);
    EXPECT_EQ(trie->name(0), "b");
    EXPECT_EQ(trie->text(0), "ab");
    EXPECT_EQ(trie->text(1), "c");
    ASSERT_EQ(trie->aliases().size(), 1U);
    EXPECT_EQ(trie->aliases()[0].name, "m");
    EXPECT_EQ(message_of([&] { Trie::build(text_list({{"nothing", ""}}), lexicon); }),
              "no leaf with tokens: a set needs at least one");
}

TEST(Graph, TextsForAnotherVocabularyAreRefused) {
    LeafList leaves = text_list({{"a", "a"}});
    leaves.vocab = "sha256:other";
    EXPECT_EQ(message_of([&] { Trie::build(std::move(leaves), Lexicon(kTiny, "sha256:some")); }),
              "vocab: the set was made for another vocabulary (sha256:other) than this model's (sha256:some)");
}

TEST(Graph, ATreeSpellsNoText) {
    const auto trie = trie_of({{"a", {1}}});
    EXPECT_TRUE(trie->is_tree());
    EXPECT_EQ(trie->text(0), "");
}

TEST(Graph, RandomSetsHoldExactlyTheSpellingsOfTheirTexts) {
    std::mt19937 rng(20);
    const auto below = [&rng](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(rng); };
    const auto text = [&](std::size_t n_bytes) {
        std::string out(n_bytes, '\0');
        for (char & byte : out) {
            byte = "ab\xC3"[below(3)];
        }
        return out;
    };
    int n_built = 0;
    for (int round = 0; round < 1000; ++round) {
        Texts pieces(1 + below(10));
        for (std::string & piece : pieces) {
            piece = text(below(4));
        }
        std::map<Tokens, std::string> expected;
        Texts texts;
        bool all_spelled = true;
        for (std::size_t i = 0; i < 1 + below(4); ++i) {
            texts.push_back(text(1 + below(7)));
            const std::set<Tokens> found = spellings(texts.back(), pieces);
            all_spelled = all_spelled && !found.empty();
            for (const Tokens & tokens : found) {
                expected[tokens] = texts.back();
            }
        }
        if (!all_spelled) {
            EXPECT_NE(message_of([&] { graph_of(texts, pieces); }), "") << "round " << round;
            continue;
        }
        ++n_built;
        const auto trie = graph_of(texts, pieces);
        EXPECT_EQ(sequences_of(*trie), expected) << "round " << round;
        for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
            std::size_t shortest = SIZE_MAX;
            for (const auto & [tokens, name] : expected) {
                shortest = name == trie->name(leaf) ? std::min(shortest, tokens.size()) : shortest;
            }
            EXPECT_EQ(trie->sequence(leaf).size(), shortest) << "round " << round;
            EXPECT_EQ(expected[trie->sequence(leaf)], trie->name(leaf)) << "round " << round;
        }
    }
    EXPECT_GT(n_built, 100);
}

TEST(Graph, ALongTextOfOneLetterTakesMemoryInProportionToItsLengthAndTheTokens) {
    const std::string text(kMaxLeafTokens, 'a');
    const auto trie = graph_of({text}, {"a", "aa", "aaa"});
    EXPECT_EQ(trie->n_nodes(), kMaxLeafTokens + 1);
    EXPECT_EQ(trie->sequence(0).size(), (kMaxLeafTokens + 2) / 3);
    EXPECT_EQ(trie->max_length(), kMaxLeafTokens);
    EXPECT_LE(trie->structure_bytes(), std::size_t{3 * 8 + 16} * kMaxLeafTokens);
}

TEST(Graph, MoreEdgesThanTheLimitAreRefused) {
    const Lexicon lexicon({"a", "aa"}, "");
    const auto build = [&](std::size_t max_edges) { Trie::build(text_list({{"a", "aaa"}}), lexicon, max_edges); };
    EXPECT_EQ(message_of([&] { build(5); }), "");
    EXPECT_EQ(message_of([&] { build(4); }), "the texts have too many spellings: a graph of more than 4 edges");
}

}  // namespace
}  // namespace token_trie::test
