#include "scorer_fixture.h"

namespace token_trie::test {
namespace {

Tokens joined(Tokens a, const Tokens & b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

bool begins(const Tokens & prefix, const Tokens & whole) {
    return prefix.size() < whole.size() && std::equal(prefix.begin(), prefix.end(), whole.begin());
}

std::set<Token> continuations(const std::set<Tokens> & members, const Tokens & leaf) {
    std::set<Token> out;
    for (const Tokens & member : members) {
        if (begins(leaf, member)) {
            out.insert(member[leaf.size()]);
        }
    }
    return out;
}

INSTANTIATE_TEST_SUITE_P(AModelWith, ScorerOn, scorer_settings(), name_of);

TEST_P(ScorerOn, EveryLeafHasTheProbabilityThatItHasAlone) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    PlainModel model(GetParam().kind);
    std::mt19937 rng(1);
    for (int round = 0; round < 6; ++round) {
        const std::set<Tokens> members = random_texts(rng, 12, 5, 8);
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(members);
        ScoreOptions options;
        options.leaf_end = LeafEnd::any;
        const Answer any = score_all(sequence, cursor_of(trie), options, kNotCancelled);
        options.leaf_end = LeafEnd::longest;
        const Answer longest = score_all(sequence, cursor_of(trie), options, kNotCancelled);
        options.leaf_end = LeafEnd::follow;
        const Answer follow = score_all(sequence, cursor_of(trie), options, kNotCancelled);
        ASSERT_EQ(any.logprobs.size(), trie->n_leaves());
        for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
            const Tokens tokens = trie->sequence(leaf);
            const double alone = model.logprob(kPrompt, tokens);
            EXPECT_NEAR(any.logprobs[leaf], alone, near());
            const std::vector<double> next = model.next(joined(kPrompt, tokens));
            double goes_on = 0;
            for (const Token token : continuations(members, tokens)) {
                goes_on += next[static_cast<std::size_t>(token)];
            }
            EXPECT_NEAR(longest.logprobs[leaf], alone + std::log1p(-goes_on), near());
            EXPECT_NEAR(follow.logprobs[leaf], alone + std::log(next[kTinyEnd]), near());
        }
    }
}

TEST_P(ScorerOn, BranchesAloneAreWhatAWalkInSampledModeDraws) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    PlainModel model(GetParam().kind);
    std::mt19937 rng(2);
    const std::set<Tokens> members = random_texts(rng, 12, 5, 8);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(members);
    ScoreOptions options;
    options.branches = true;
    const Answer scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
    double total = 0;
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        Cursor cursor = cursor_of(trie);
        Tokens tokens = trie->sequence(leaf);
        tokens.push_back(kTinyEnd);
        Tokens text = kPrompt;
        double expected = 0;
        for (const Token token : tokens) {
            const std::vector<double> next = model.next(text);
            double allowed = 0;
            cursor.allowed().for_each([&](Token t) {
                allowed += next[static_cast<std::size_t>(t)];
                return true;
            });
            expected += std::log(next[static_cast<std::size_t>(token)] / allowed);
            cursor.accept(token);
            text.push_back(token);
        }
        EXPECT_NEAR(scores.logprobs[leaf], expected, near());
        total += std::exp(scores.logprobs[leaf]);
    }
    EXPECT_NEAR(total, 1, near());
}

TEST_P(ScorerOn, TheLastCellOfAContextIsUsedAndNoMoreThanThereIsAskedFor) {
    Sequence sequence(maker());
    sequence.replace(Tokens(sequence.n_ctx_max() - 1, kRead), kNotCancelled);
    const auto trie = trie_of({{"a", {kRead, kFile}}, {"b", {kSend, kFile}}, {"c", {kSend, kMail}}});
    ScoreOptions options;
    EXPECT_EQ(message_of([&] { static_cast<void>(score_all(sequence, cursor_of(trie), options, kNotCancelled)); }), "");
    options.leaf_end = LeafEnd::follow;
    const std::uint64_t passes = sequence.n_passes();
    EXPECT_EQ(message_of([&] { static_cast<void>(score_all(sequence, cursor_of(trie), options, kNotCancelled)); }),
              "255 tokens and 2 of the longest leaf do not fit the context of 256");
    EXPECT_EQ(sequence.n_passes(), passes);
}

TEST_P(ScorerOn, TheSequenceAndItsCacheAreAsBefore) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    sequence.append(kRead);
    const float * row = sequence.logits({true, {}, {}}, false, kNotCancelled);
    const std::vector<float> before(row, row + kTinyVocab);
    std::mt19937 rng(3);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 30, 4, 8));
    for (const Tokens & prefix : {Tokens{}, bytes("other")}) {
        ScoreOptions options;
        options.prefix = prefix;
        static_cast<void>(score_all(sequence, cursor_of(trie), options, kNotCancelled));
        EXPECT_EQ(sequence.tokens(), joined(kPrompt, {kRead}));
        EXPECT_EQ(sequence.n_cached(), sequence.tokens().size());
        EXPECT_EQ(llama_memory_seq_pos_max(llama_get_memory(sequence.context()), 0),
                  static_cast<llama_pos>(kPrompt.size()));
        const std::uint64_t passes = sequence.n_passes();
        row = sequence.logits({true, {}, {}}, false, kNotCancelled);
        EXPECT_EQ(std::vector<float>(row, row + kTinyVocab), before);
        EXPECT_EQ(sequence.n_passes(), passes) << "nothing to evaluate again";
    }
    const llama_seq_id first = sequence.first_free_id();
    for (llama_seq_id id = first; id < static_cast<llama_seq_id>(GetParam().n_seq_max); ++id) {
        EXPECT_EQ(llama_memory_seq_pos_max(llama_get_memory(sequence.context()), id), -1);
    }
    sequence.append(kFile);
    const std::vector<float> after(sequence.logits({true, {}, {}}, false, kNotCancelled),
                                   sequence.logits({true, {}, {}}, false, kNotCancelled) + kTinyVocab);
    Sequence fresh(maker());
    fresh.replace(joined(kPrompt, {kRead, kFile}), kNotCancelled);
    row = fresh.logits({true, {}, {}}, false, kNotCancelled);
    for (std::size_t i = 0; i < after.size(); ++i) {
        ASSERT_NEAR(after[i], row[i], 0.02);
    }
}

TEST_P(ScorerOn, BehindAPrefixScoresAreThoseOfASequenceOfIt) {
    Sequence sequence(maker());
    std::mt19937 rng(4);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 30, 4, 8));
    sequence.replace(bytes("x"), kNotCancelled);
    const Answer expected = score_all(sequence, cursor_of(trie), {}, kNotCancelled);
    sequence.replace(kPrompt, kNotCancelled);
    ScoreOptions options;
    options.prefix = bytes("x");
    const Answer scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        EXPECT_NEAR(scores.logprobs[leaf], expected.logprobs[leaf], near());
    }
}

TEST_P(ScorerOn, BehindAPrefixNoSequenceIsNeeded) {
    Sequence sequence(maker());
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({bytes("abcd"), bytes("abxy")});
    ScoreOptions options;
    options.prefix = kPrompt;
    const Answer scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
    PlainModel model(GetParam().kind);
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        EXPECT_NEAR(scores.logprobs[leaf], model.logprob(kPrompt, trie->sequence(leaf)), near());
    }
    EXPECT_EQ(sequence.n_cached(), 0U);
}

TEST_P(ScorerOn, NoNodeIsEvaluatedTwice) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    std::mt19937 rng(5);
    for (int round = 0; round < 5; ++round) {
        const std::shared_ptr<const Trie> trie = unnamed_trie_of(random_texts(rng, 40, 5, 8));
        std::uint64_t n_inner = 0;
        for (NodeId node = kRoot + 1; node < trie->n_nodes(); ++node) {
            n_inner += trie->children(node).empty() ? 0 : 1;
        }
        const std::uint64_t n_evaluated = score_all(sequence, cursor_of(trie), {}, kNotCancelled).info.n_evaluated;
        EXPECT_GE(n_evaluated, n_inner);
        // States that were given up, as ids are few, are evaluated again.
        EXPECT_LE(n_evaluated, has_states(tiny_model(GetParam().kind)) ? n_inner + n_inner / 4 : n_inner);
    }
}

TEST_P(ScorerOn, AContextWithoutRoomForTheLongestLeafIsRefusedAndOneWithJustEnoughIsNot) {
    Sequence sequence(maker());
    const std::shared_ptr<const Trie> trie =
        unnamed_trie_of({bytes("abcd"), bytes("efgh"), bytes("ijkl"), bytes("abxy")});
    sequence.replace(Tokens(sequence.n_ctx_max() - 2, kRead), kNotCancelled);
    EXPECT_EQ(message_of([&] { static_cast<void>(score_all(sequence, cursor_of(trie), {}, kNotCancelled)); }),
              "254 tokens and 3 of the longest leaf do not fit the context of 256");
    const Tokens prompt(sequence.n_ctx_max() - 3, kRead);
    sequence.replace(prompt, kNotCancelled);
    const Answer scores = score_all(sequence, cursor_of(trie), {}, kNotCancelled);
    PlainModel model(GetParam().kind);
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        EXPECT_NEAR(scores.logprobs[leaf], model.logprob(prompt, trie->sequence(leaf)), near());
    }
}

TEST_P(ScorerOn, ACancelledCallLeavesTheSequenceToGoOnFrom) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({bytes("abcd"), bytes("efgh")});
    const std::atomic<bool> cancelled{true};
    EXPECT_EQ(message_of([&] { static_cast<void>(score_all(sequence, cursor_of(trie), {}, cancelled)); }), "cancelled");
    EXPECT_EQ(sequence.n_cached(), kPrompt.size());
    EXPECT_EQ(llama_memory_seq_pos_max(llama_get_memory(sequence.context()), 0),
              static_cast<llama_pos>(kPrompt.size()) - 1);
}

TEST_P(ScorerOn, WhatAReplacementGaveUpLeavesRoomForAPrefix) {
    Sequence sequence(maker());
    sequence.replace(kPrompt, kNotCancelled);
    std::atomic<bool> cancelled{false};  // within the first of four batches
    const auto cancel = [](void * flag) {
        *static_cast<std::atomic<bool> *>(flag) = true;
        return false;
    };
    llama_set_abort_callback(sequence.context(), cancel, &cancelled);
    EXPECT_EQ(message_of([&] { sequence.replace(Tokens(256, kRead), cancelled); }), "cancelled");
    llama_set_abort_callback(sequence.context(), nullptr, nullptr);
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({bytes("abcd"), bytes("abxy")});
    ScoreOptions options;
    options.prefix = Tokens(sequence.n_ctx_max() - kPrompt.size() - 3, kMail);
    const Answer scores = score_all(sequence, cursor_of(trie), options, kNotCancelled);
    PlainModel model(GetParam().kind);
    for (LeafId leaf = 0; leaf < trie->n_leaves(); ++leaf) {
        EXPECT_NEAR(scores.logprobs[leaf], model.logprob(options.prefix, trie->sequence(leaf)), near());
    }
}

TEST_F(ScorerTest, AllStringsAndWhatLiesOutsideSumToOne) {
    // READ, and every sequence of two tokens that begins with one of the first 24.
    std::set<Tokens> members = {{kRead}};
    for (Token a = 0; a < 24; ++a) {
        for (Token b = 0; b < kTinyVocab; ++b) {
            members.insert({a, b});
        }
    }
    const std::shared_ptr<const Trie> trie = unnamed_trie_of(members);
    const Answer scores = score_all(sequence_, cursor_of(trie), {}, kNotCancelled);
    double inside = 0;
    for (const double logprob : scores.logprobs) {
        inside += std::exp(logprob);
    }
    const std::vector<double> next = PlainModel().next(kPrompt);
    double outside = 0;
    for (Token token = 24; token < kTinyVocab; ++token) {
        outside += token == kRead ? 0 : next[static_cast<std::size_t>(token)];
    }
    EXPECT_NEAR(inside + outside, 1, kNear);
}

TEST_F(ScorerTest, LeavesThatBeginOthersExcludeThemUnderLongest) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({{kRead}, {kRead, kFile}, {kRead, kMail}, {kSend}});
    const Answer scores = score_all(sequence_, cursor_of(trie), {}, kNotCancelled);
    double sum = 0;
    for (const double logprob : scores.logprobs) {
        sum += std::exp(logprob);
    }
    const std::vector<double> next = PlainModel().next(kPrompt);
    EXPECT_NEAR(sum, next[kRead] + next[kSend], kNear) << "the probability of what the set begins with";
}

TEST_F(ScorerTest, ASetOfOneLeafOfOneTokenCostsNoPass) {
    const Answer scores = score_all(sequence_, cursor_of(unnamed_trie_of({{kRead}})), {}, kNotCancelled);
    EXPECT_EQ(scores.info.n_passes, 0U);
    EXPECT_NEAR(scores.logprobs[0], PlainModel().logprob(kPrompt, {kRead}), kNear);
}

TEST_F(ScorerTest, BranchesAloneNeedNothingThatLeavesNoChoiceBehindIt) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({bytes("abcdef"), bytes("axyz"), bytes("b")});
    ScoreOptions options;
    options.branches = true;
    EXPECT_EQ(score_all(sequence_, cursor_of(trie), options, kNotCancelled).info.n_evaluated, 1U) << "a";
    EXPECT_EQ(score_all(sequence_, cursor_of(trie), {}, kNotCancelled).info.n_evaluated, 1U + 4U + 2U);
}

TEST_F(ScorerTest, UnderReleaseTheFollowSetIsEveryTokenThatGoesOnWithNoLongerLeaf) {
    const std::shared_ptr<const Trie> trie = unnamed_trie_of({{kRead}, {kRead, kFile}, {kSend}});
    const Cursor released = cursor_of(trie, {OnComplete::release, {}, {}, 0});
    ScoreOptions options;
    options.leaf_end = LeafEnd::follow;
    const Answer follow = score_all(sequence_, released, options, kNotCancelled);
    options.leaf_end = LeafEnd::longest;
    EXPECT_EQ(follow.logprobs, score_all(sequence_, released, options, kNotCancelled).logprobs);
}

TEST_F(ScorerTest, AWaveGoesOnFromTheOneBefore) {
    // Three ids for paths, nine leaves of a common beginning.
    Sequence sequence(maker_of(256, TinyKind::attention, 4));
    sequence.replace(kPrompt, kNotCancelled);
    std::set<Tokens> members;
    for (const char * end : {"aa", "ab", "ba", "bb", "ca", "cb", "da", "db", "ea"}) {
        members.insert(bytes(std::string("beginning") + end + "z"));
    }
    const Answer scores = score_all(sequence, cursor_of(unnamed_trie_of(members)), {}, kNotCancelled);
    EXPECT_EQ(scores.info.n_evaluated, 9U + 5U + 9U) << "the beginning, its branches, their ends";
}

}  // namespace
}  // namespace token_trie::test
