#include "batch_fixture.h"

namespace token_trie::test {
namespace {

TEST_P(BatchOn, WhoAsksBehindATextFindsItEvaluated) {
    const std::shared_ptr<Batch> batch = open(4096);
    std::map<Ticket, Tokens> prompts;
    for (int i = 0; i < 24; ++i) {
        const Tokens prompt = bytes(std::string(40, static_cast<char>('a' + i % 3)) + std::to_string(i));
        Request asked = text_behind(prompt, 100);
        asked.cursor = thinking(kActions, 30);
        prompts[submit(batch, asked)] = prompt;
    }
    std::map<Ticket, std::size_t> behind;
    for (const auto & [ticket, answer] : take_all(*batch)) {
        EXPECT_EQ(answer.info.stop, TOKEN_TRIE_STOP_COMPLETE);
        ASSERT_GE(answer.tokens.size(), 2U);
        EXPECT_EQ(Tokens(answer.tokens.end() - 2, answer.tokens.end()), bytes("->"));
        Tokens prompt = prompts.at(ticket);
        prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
        behind[submit(batch, request(prompt, kActions, Query::Mode::best))] = prompt.size();
    }
    for (const auto & [ticket, answer] : take_all(*batch)) {
        EXPECT_GE(answer.info.n_shared + 3, behind.at(ticket)) << "all but the marker, which was forced";
    }
}

TEST_P(BatchOn, ATextStaysForWhoAsksBehindItWhileOthersEnd) {
    const std::shared_ptr<Batch> batch = open(4096, {8, 0});
    const Tokens prompt = bytes(std::string(100, 'x'));
    submit(batch, text_behind(prompt, 30));
    Tokens whole = prompt;
    const Answer text = take(*batch);
    whole.insert(whole.end(), text.tokens.begin(), text.tokens.end());
    for (char begin = 'a'; begin < 'i'; ++begin) {
        submit(batch, request(bytes(std::string(60, begin)), kActions));
    }
    take_all(*batch);
    submit(batch, request(whole, kActions, Query::Mode::best));
    EXPECT_GE(take(*batch).info.n_shared + 3, whole.size());
}

TEST_P(BatchOn, OfATextUnderWayAllTokensUntilNowAreToBeHad) {
    const std::shared_ptr<Batch> batch = open();
    Request text = text_behind(bytes("Do: "), 300);
    text.text.grammar = "root ::= [a-z]{300}";
    const Ticket ticket = submit(batch, text);
    const Ticket chosen = submit(batch, request(bytes("Do: "), kActions));
    Tokens seen;
    Answer taken;
    while (batch->next(ticket, 1, taken) != Batch::Found::answer) {
        std::array<Token, 3> more{};
        for (std::size_t n = more.size(); n == more.size();) {
            n = batch->copy_text(ticket, seen.size(), more.data(), more.size());
            seen.insert(seen.end(), more.begin(), more.begin() + static_cast<std::ptrdiff_t>(n));
        }
        EXPECT_EQ(batch->copy_text(chosen, 0, more.data(), more.size()), 0U);
    }
    const Tokens & written = taken.tokens;
    ASSERT_GE(written.size(), seen.size());
    EXPECT_GE(seen.size(), 10U);
    EXPECT_EQ(seen, Tokens(written.begin(), written.begin() + static_cast<std::ptrdiff_t>(seen.size())));
    EXPECT_EQ(status_of([&] { batch->copy_text(ticket, 0, seen.data(), 1); }), Status::argument) << "taken";
}

TEST_P(BatchOn, ATextEndsAfterTheTokenWithWhichItsCallbackEndsIt) {
    const std::shared_ptr<Batch> batch = open();
    Alone alone(GetParam());
    for (std::size_t n = 1; n < 6; ++n) {
        Request text = text_behind(bytes("Do: "), 9);
        text.text.grammar = "root ::= [a-z]{9}";
        std::size_t n_seen = 0;
        text.text.on_token = [&n_seen, n](const Decoder::Step & step) {
            EXPECT_EQ(step.text.size(), 1U);
            return ++n_seen < n;
        };
        submit(batch, text);
        const Answer answer = take(*batch);
        EXPECT_EQ(answer.info.stop, TOKEN_TRIE_STOP_CALLBACK);
        EXPECT_EQ(answer.tokens.size(), n);
        n_seen = 0;
        expect_same(answer, alone.decide(text));
    }
}

TEST_P(BatchOn, WhatGoesOnKeepsItsPlaceWhileOthersWait) {
    const std::shared_ptr<Batch> batch = open(1024, {8, 0});
    std::map<Ticket, Tokens> under_way;
    const auto ask = [&](const Tokens & prompt) {
        Request next = request(prompt, kActions);
        next.goes_on = true;
        under_way[submit(batch, next)] = prompt;
    };
    for (int i = 0; i < 30; ++i) {
        ask(bytes(std::string(60, static_cast<char>('a' + i % 26)) + std::to_string(i)));
    }
    std::size_t n_evaluated = 0;
    while (!under_way.empty()) {
        const Answer taken = take(*batch);
        Tokens prompt = under_way.at(taken.info.ticket);
        under_way.erase(taken.info.ticket);
        n_evaluated += prompt.size() - taken.info.n_shared;
        prompt.insert(prompt.end(), taken.tokens.begin(), taken.tokens.end());
        prompt.push_back(kSend);
        if (prompt.size() < 110) {
            ask(prompt);
        }
    }
    EXPECT_LT(n_evaluated, 30U * 130) << "each token once, or little more";
    submit(batch, request(Tokens(1000, kRead), kActions));
    EXPECT_EQ(take(*batch).info.status, TOKEN_TRIE_OK) << "no cell is lost";
}

TEST_P(BatchOn, WhatIsNotGoneOnWithHoldsUpNobody) {
    const std::shared_ptr<Batch> batch = open(512, {4, 0});
    for (int i = 0; i < 12; ++i) {
        Request next = request(bytes(std::string(60, static_cast<char>('a' + i))), kActions);
        next.goes_on = true;
        submit(batch, next);
    }
    EXPECT_EQ(take_all(*batch).size(), 12U);
}

TEST_P(BatchOn, WhatGoesOnAfterAnotherThanExpectedHoldsUpNobody) {
    const std::shared_ptr<Batch> batch = open(256, {4, 0});
    // All alike but for a token near the end, where a later prompt may be spelled anew.
    std::map<Ticket, std::pair<Tokens, int>> under_way;
    const auto ask = [&](const Tokens & prompt, int n) {
        Request next = request(prompt, kActions);
        next.goes_on = true;
        under_way[submit(batch, next)] = {prompt, n};
    };
    for (char each = 'a'; each < 'm'; ++each) {
        ask(bytes(std::string(40, 'x') + each + "..."), 4);
    }
    std::size_t n_answers = 0;
    while (!under_way.empty()) {
        const Answer taken = take(*batch);
        auto [prompt, n] = under_way.at(taken.info.ticket);
        under_way.erase(taken.info.ticket);
        ++n_answers;
        prompt.insert(prompt.end(), taken.tokens.begin(), taken.tokens.end());
        if (n > 0) {
            ask(prompt, n - 1);
        }
    }
    EXPECT_EQ(n_answers, 12U * 5);
}

TEST_P(BatchOn, TextWithoutTokensTakesNoPass) {
    const std::shared_ptr<Batch> batch = open();
    submit(batch, text_behind(bytes("Do: "), 0));
    Request at_once = text_behind(bytes("Do: "), 10);
    at_once.cursor = thinking(kActions, 0);
    submit(batch, at_once);
    EXPECT_EQ(take(*batch).info.stop, TOKEN_TRIE_STOP_MAX_TOKENS);
    const Answer forced = take(*batch);
    EXPECT_EQ(forced.tokens, bytes("->"));
    EXPECT_EQ(forced.info.n_passes, 0U);
}

TEST_P(BatchOn, NoTextIsLongerThanAskedForAndEachIsAStreams) {
    Alone alone(GetParam());
    const std::shared_ptr<Batch> batch = open();
    std::map<Ticket, Request> asked;
    for (std::size_t i = 0; i < 400; ++i) {
        Request each = text_behind(bytes("Do " + std::to_string(i)), 1 + i % 3);
        each.sampling.temperature = 1;
        each.sampling.seed = static_cast<std::uint32_t>(i);
        for (const char * stop : {"D", "L"}) {
            each.text.stop_strings.emplace_back(stop);
        }
        each.text.grammar = R"(root ::= ("READ" | "_FILE" | "_MAIL" | "SEND")*)";
        asked.emplace(submit(batch, each), each);
    }
    for (const auto & [ticket, answer] : take_all(*batch)) {
        const Request & each = asked.at(ticket);
        EXPECT_LE(answer.tokens.size(), each.text.max_tokens);
        expect_same(answer, alone.decide(each));
    }
}

TEST_P(BatchOn, ATextEndsWhereTheContextIsFull) {
    for (const std::size_t n_chunk : {std::size_t{0}, std::size_t{16}}) {
        const std::shared_ptr<Batch> batch = open(256, {4, 0, n_chunk});
        const std::size_t n_ctx = n_chunk == 0 ? 256 : 224;
        for (const std::size_t n_prompt : {std::size_t{1}, std::size_t{100}, n_ctx - 1}) {
            Request text = text_behind(Tokens(n_prompt, kRead), 1000);
            text.text.grammar = "root ::= [a-z]{1000}";
            submit(batch, text);
            const Answer answer = take(*batch);
            EXPECT_EQ(answer.info.status, TOKEN_TRIE_OK) << answer.message;
            EXPECT_EQ(answer.info.stop, TOKEN_TRIE_STOP_MAX_TOKENS);
            EXPECT_EQ(answer.tokens.size(), n_ctx - n_prompt);
        }
    }
}

TEST_F(BatchTest, TextThatCannotBeWrittenIsRefusedAtOnce) {
    const std::shared_ptr<Batch> batch = open(256);
    const auto refusal = [&](Request asked) { return status_of([&] { submit(batch, asked); }); };
    Request thinks = request(bytes("Do: "), kActions, Query::Mode::best);
    thinks.cursor = thinking(kActions, 5);
    EXPECT_EQ(refusal(thinks), Status::argument) << "whole answers are not found behind a text";
    thinks.mode = Query::Mode::greedy;
    thinks.cursor = thinking(kActions, -1);
    EXPECT_EQ(refusal(thinks), Status::argument) << "a thought without a limit has no place";
    EXPECT_EQ(refusal(text_behind(Tokens(256, kRead), 1)), Status::context);
    Request long_text = text_behind(bytes("Do: "), 3);
    long_text.cursor = shared_cursor_of(kActions);
    EXPECT_EQ(refusal(long_text), Status::argument) << "text has no set, or ends before it";
    Request no_grammar = text_behind(bytes("Do: "), 3);
    no_grammar.text.grammar = "root ::= (";
    EXPECT_EQ(refusal(no_grammar), Status::grammar);
    no_grammar.text = {3, {""}, std::nullopt, "root"};
    EXPECT_EQ(refusal(no_grammar), Status::argument) << "a stop string is not empty";
    EXPECT_EQ(take(*batch).info.ticket, 0);
}

}  // namespace
}  // namespace token_trie::test
