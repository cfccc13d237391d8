#include "trie/payload.h"

#include "support.h"

namespace token_trie::test {
namespace {

constexpr std::int32_t kVocabSize = 49152;

const std::string kPayload = R"({
    "modelId": "any text",
    "vocab": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "descriptors": [
        {"path": "action", "leaves": [{"name": "READ", "tokens": [7]}, {"name": "READ_FILE", "tokens": [7, 8]}]},
        {"path": "mood", "leaves": [{"name": "caf\u00e9", "tokens": [100, 101]}]}
    ]
})";

LeafList read(std::string_view json) { return read_payload(json, std::nullopt, kVocabSize); }

std::string refusal(std::string_view json) {
    return message_of([json] { read(json); });
}

// The payload around one descriptor's leaves, one leaf's tokens, ...
std::string with_descriptors(const std::string & text) { return R"({"descriptors": )" + text + "}"; }
std::string with_leaves(const std::string & text) { return with_descriptors(R"([{"leaves": )" + text + "}]"); }
std::string with_tokens(const std::string & text) { return with_leaves(R"([{"name": "a", "tokens": )" + text + "}]"); }
std::string with_token(const std::string & text) { return with_tokens("[1, " + text + "]"); }
std::string with_name(const std::string & text) { return with_leaves(R"([{"name": )" + text + R"(, "tokens": [1]}])"); }
// ... and a valid payload with one more value, under a key that nobody knows.
std::string with_unknown(const std::string & text) {
    return R"({"unknown": )" + text + R"(, "descriptors": [{"leaves": [{"name": "a", "tokens": [1]}]}]})";
}

struct Refused {
    std::string json;
    std::string message;
};

void expect_refused(const std::vector<Refused> & table) {
    for (const Refused & row : table) {
        EXPECT_EQ(refusal(row.json), row.message) << row.json.substr(0, 200);
    }
}

TEST(Payload, AllDescriptorsAreOneSet) {
    const LeafList leaves = read(kPayload);
    EXPECT_EQ(leaves.names, std::vector<std::string>({"READ", "READ_FILE", "caf\u00e9"}));
    EXPECT_EQ(leaves.tokens, Tokens({7, 7, 8, 100, 101}));
    EXPECT_EQ(leaves.offsets, std::vector<std::uint64_t>({0, 1, 3, 5}));
    EXPECT_EQ(leaves.vocab, "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
}

TEST(Payload, APathSelectsItsDescriptorsAlone) {
    const LeafList leaves = read_payload(kPayload, "mood", kVocabSize);
    EXPECT_EQ(leaves.names, std::vector<std::string>({"caf\u00e9"}));
    EXPECT_EQ(leaves.tokens, Tokens({100, 101}));
    EXPECT_EQ(leaves.offsets, std::vector<std::uint64_t>({0, 2}));

    const std::string twice = with_descriptors(
        R"([{"path": "p", "leaves": [{"name": "a", "tokens": [1]}]},
            {"path": "q", "leaves": [{"name": "b", "tokens": [2]}]},
            {"leaves": [{"tokens": [3], "name": "c"}], "path": "p"},
            {"leaves": [{"tokens": [4], "name": "d"}]}])");
    EXPECT_EQ(read_payload(twice, "p", kVocabSize).tokens, Tokens({1, 3}));
    EXPECT_EQ(read_payload(twice, "", kVocabSize).tokens, Tokens({4})) << "no path is the empty path";
}

TEST(Payload, APathThatNoDescriptorHasIsRefusedNamingThoseThereAre) {
    EXPECT_EQ(message_of([] { read_payload(kPayload, "nowhere", kVocabSize); }),
              R"(payload: no descriptor has the path "nowhere"; there is "action", "mood")");
    EXPECT_EQ(message_of([] { read_payload(with_descriptors("[]"), "nowhere", kVocabSize); }),
              R"(payload: no descriptor has the path "nowhere")");
}

TEST(Payload, NoLeafIsRefused) {
    const std::string no_leaf = "payload: no leaf with tokens: a set needs at least one";
    expect_refused({
        {with_descriptors("[]"), no_leaf},
        {with_leaves("[]"), no_leaf},
        {with_tokens("[]"), no_leaf},
        {"{}", R"(payload: the key "descriptors" is missing)"},
    });
}

TEST(Payload, AMissingKeyIsRefusedWithItsPlace) {
    expect_refused({
        {with_descriptors(R"([{"path": "p"}])"), R"(descriptors[0]: the key "leaves" is missing)"},
        {with_leaves(R"([{"name": "a", "tokens": [1]}, {"tokens": [1]}])"),
         R"(descriptors[0].leaves[1]: the key "name" is missing)"},
        {with_leaves(R"([{"name": "a"}])"), R"(descriptors[0].leaves[0]: the key "tokens" is missing)"},
    });
}

TEST(Payload, AKeyThatStandsTwiceIsRefusedUnlessUnknown) {
    expect_refused({
        {R"({"modelId": "a", "modelId": "a"})", "modelId: the key comes twice"},
        {R"({"descriptors": [], "descriptors": []})", "descriptors: the key comes twice"},
        {with_descriptors(R"([{"path": "p", "path": "p"}])"), "descriptors[0].path: the key comes twice"},
        {with_descriptors(R"([{"leaves": [], "leaves": []}])"), "descriptors[0].leaves: the key comes twice"},
        {with_leaves(R"([{"name": "a", "tokens": [1], "tokens": [2]}])"),
         "descriptors[0].leaves[0].tokens: the key comes twice"},
        {with_leaves(R"([{"name": "a", "name": "b"}])"), "descriptors[0].leaves[0].name: the key comes twice"},
        {R"({"x": 1, "x": {"x": [], "x": []}, "descriptors": [{"leaves": [{"name": "a", "tokens": [1]}]}]})", ""},
    });
}

TEST(Payload, UnknownKeysAreIgnoredWhateverTheyHold) {
    for (const char * value :
         {"1", "-1.5e3", "null", "true", R"("text")", "[]", R"([{"name": 1, "tokens": "x"}, "a", 2])",
          R"({"descriptors": 7, "leaves": {"tokens": [-1, "a"]}})"}) {
        EXPECT_EQ(refusal(with_unknown(value)), "") << value;
        EXPECT_EQ(refusal(with_leaves(R"([{"name": "a", "x": )" + std::string(value) + R"(, "tokens": [1]}])")), "")
            << value;
    }
}

TEST(Payload, EveryWrongTypeIsRefusedWithItsPlace) {
    struct Place {
        std::string (*payload)(const std::string &);
        std::string name;
        std::string wanted;
    };
    const std::vector<Place> places = {
        {[](const std::string & v) { return v; }, "payload", "an object"},
        {[](const std::string & v) { return R"({"modelId": )" + v + "}"; }, "modelId", "a string"},
        {[](const std::string & v) { return R"({"vocab": )" + v + "}"; }, "vocab", "a string"},
        {with_descriptors, "descriptors", "an array"},
        {[](const std::string & v) { return with_descriptors("[" + v + "]"); }, "descriptors[0]", "an object"},
        {[](const std::string & v) { return with_descriptors(R"([{"path": )" + v + "}]"); }, "descriptors[0].path",
         "a string"},
        {[](const std::string & v) { return with_descriptors(R"([{"leaves": [], "path": "p"}, )" + v + "]"); },
         "descriptors[1]", "an object"},
        {with_leaves, "descriptors[0].leaves", "an array"},
        {[](const std::string & v) { return with_leaves(R"([{"tokens": [1], "name": "a"}, )" + v + "]"); },
         "descriptors[0].leaves[1]", "an object"},
        {with_name, "descriptors[0].leaves[0].name", "a string"},
        {with_tokens, "descriptors[0].leaves[0].tokens", "an array"},
        {with_token, "descriptors[0].leaves[0].tokens[1]", "a token id"},
    };
    struct Value {
        std::string text;
        std::string called;
        std::string fits;
    };
    const std::vector<Value> values = {
        {"null", "null", ""},
        {"true", "a boolean", ""},
        {"1.5", "a fraction", ""},
        {"2", "a number", "a token id"},
        {R"("text")", "a string", "a string"},
        {"{}", "an object", "an object"},
        {"[]", "an array", "an array"},
    };
    for (const Place & place : places) {
        for (const Value & value : values) {
            if (value.fits != place.wanted) {
                EXPECT_EQ(refusal(place.payload(value.text)),
                          place.name + " must be " + place.wanted + ", not " + value.called);
            }
        }
    }
}

TEST(Payload, ATokenIsAWholeNumberInsideTheVocabulary) {
    const std::string place = "descriptors[0].leaves[0].tokens[1]: ";
    const std::string outside = " is outside the vocabulary (49152 tokens)";
    expect_refused({
        {with_token("0"), ""},
        {with_token("49151"), ""},
        {with_token("49152"), place + "49152" + outside},
        {with_token("300000"), place + "300000" + outside},
        {with_token("-1"), place + "-1 is not a token id"},
        {with_token("-9223372036854775808"), place + "-9223372036854775808 is not a token id"},
        {with_token("2147483647"), place + "2147483647" + outside},
        {with_token("2147483648"), place + "2147483648 is not a token id"},
        {with_token("4294967297"), place + "4294967297 is not a token id"},
        {with_token("18446744073709551615"), place + "18446744073709551615 is not a token id"},
        {with_token("18446744073709551616"), place + "18446744073709551616 is not a token id"},
        {with_token("1.0"), "descriptors[0].leaves[0].tokens[1] must be a token id, not a fraction"},
        {with_token("1e3"), "descriptors[0].leaves[0].tokens[1] must be a token id, not a fraction"},
        {with_leaves(R"([{"name": "a", "tokens": [1]}, {"name": "b", "tokens": []},
                         {"name": "c", "tokens": [1]}, {"name": "d", "tokens": [1, 300000]}])"),
         "descriptors[0].leaves[3].tokens[1]: 300000" + outside},
    });
    EXPECT_EQ(read_payload(with_token("300000"), std::nullopt, 0).tokens, Tokens({1, 300000}))
        << "no vocabulary, no range";
}

TEST(Payload, BrokenJsonIsRefusedWithThePlaceAndTheByte) {
    const std::vector<Refused> table = {
        {"", "payload: broken JSON at byte 1: "},
        {" \n", "payload: broken JSON at byte 3: "},
        {"{", "payload: broken JSON at byte 2: "},
        {with_token("01"), "descriptors[0].leaves[0].tokens[2]: broken JSON at byte "},
        {with_token("1e400"), "descriptors[0].leaves[0].tokens[1]: broken JSON at byte "},
        {with_token("nan"), "descriptors[0].leaves[0].tokens[1]: broken JSON at byte "},
        {with_token("1,"), "descriptors[0].leaves[0].tokens[2]: broken JSON at byte "},
        {with_name("\"\xff\""), "descriptors[0].leaves[0].name: broken JSON at byte "},
        {with_name("\"\xc0\xaf\""), "descriptors[0].leaves[0].name: broken JSON at byte "},
        {with_name("\"\xed\xa0\x80\""), "descriptors[0].leaves[0].name: broken JSON at byte "},
        {with_name(R"("\ud800")"), "descriptors[0].leaves[0].name: broken JSON at byte "},
        {with_name("\"line\nbreak\""), "descriptors[0].leaves[0].name: broken JSON at byte "},
        {with_unknown("\"\xff\""), "unknown: broken JSON at byte "},
        {kPayload + "x", "payload: broken JSON at byte " + std::to_string(kPayload.size() + 1) + ": "},
        {kPayload + kPayload, "payload: broken JSON at byte " + std::to_string(kPayload.size() + 1) + ": "},
        {"\xef\xbb" + kPayload, "payload: broken JSON at byte "},
    };
    for (const Refused & row : table) {
        const std::string message = refusal(row.json);
        EXPECT_EQ(message.substr(0, row.message.size()), row.message) << message << "\n" << row.json;
        EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
    }
}

TEST(Payload, AByteOrderMarkAndSpaceAroundAreFine) {
    EXPECT_EQ(refusal("\xef\xbb\xbf" + kPayload), "");
    EXPECT_EQ(refusal(" \t\r\n" + kPayload + "\n "), "");
}

TEST(Payload, ANulIsRefusedRawAndEscaped) {
    EXPECT_EQ(refusal(std::string("{\0}", 3)), "payload: a NUL at byte 2");
    EXPECT_EQ(refusal(kPayload + '\0'), "payload: a NUL at byte " + std::to_string(kPayload.size() + 1));
    const std::string escaped = ": holds a NUL character";
    expect_refused({
        {with_name(R"("a\u0000b")"), "descriptors[0].leaves[0].name" + escaped},
        {with_descriptors(R"([{"path": "\u0000"}])"), "descriptors[0].path" + escaped},
        {R"({"modelId": "\u0000"})", "modelId" + escaped},
        {R"({"vocab": "\u0000"})", "vocab" + escaped},
        {with_unknown(R"("\u0000")"), ""},
    });
}

TEST(Payload, TruncationAtEveryByteIsRefusedWithItsPlace) {
    for (std::size_t n = 0; n < kPayload.size(); ++n) {
        const std::string message = refusal(std::string_view(kPayload).substr(0, n));
        EXPECT_NE(message.find(": broken JSON at byte "), std::string::npos) << n << ": " << message;
        const std::string place = message.substr(0, message.find(": broken"));
        const bool known =
            place == "payload" || place == "modelId" || place == "vocab" || place.rfind("descriptors", 0) == 0;
        EXPECT_TRUE(known) << n << ": " << message;
    }
}

TEST(Payload, EveryByteReplacedIsReadOrRefusedButNeverWorse) {
    for (std::size_t i = 0; i < kPayload.size(); ++i) {
        for (const char byte : {'\0', '"', '\\', '{', '}', '[', ']', ',', ':', '-', '9', 'e', '\x80', '\xff'}) {
            std::string json = kPayload;
            json[i] = byte;
            const std::string message = refusal(json);
            if (message.empty()) {
                EXPECT_NO_THROW(Trie::build(read(json))) << json;
            }
        }
    }
}

TEST(Payload, NestingIsLimitedTo64Levels) {
    const auto nested = [](std::size_t n, const std::string & open, const std::string & close) {
        std::string out;
        for (std::size_t i = 0; i < n; ++i) {
            out += open;
        }
        out += '1';
        for (std::size_t i = 0; i < n; ++i) {
            out += close;
        }
        return out;
    };
    // The payload's own object is the first level.
    EXPECT_EQ(refusal(with_unknown(nested(63, "[", "]"))), "");
    expect_refused({
        {with_unknown(nested(64, "[", "]")), "payload: more than 64 levels of nesting"},
        {with_unknown(nested(1000000, "[", "]")), "payload: more than 64 levels of nesting"},
        {with_unknown(nested(1000000, R"({"k":)", "}")), "payload: more than 64 levels of nesting"},
        {with_leaves(R"([{"name": "a", "x": )" + nested(100, "[", "]") + "}]"),
         "descriptors[0].leaves[0]: more than 64 levels of nesting"},
    });
}

TEST(Payload, StringsAndLeavesAreLimitedInSize) {
    const auto text = [](std::size_t n) { return '"' + std::string(n, 'x') + '"'; };
    EXPECT_EQ(refusal(with_name(text(65535))), "");
    EXPECT_EQ(refusal(with_name(text(65536))), "descriptors[0].leaves[0].name: a string of 65536 bytes; at most 65535");
    EXPECT_EQ(refusal(with_name(text(10000000))),
              "descriptors[0].leaves[0].name: a string of 10000000 bytes; at most 65535");
    EXPECT_EQ(refusal(with_unknown(text(10000000))), "");
    EXPECT_EQ(refusal("{" + text(10000000) + ": 1}"), R"(payload: the key "descriptors" is missing)");

    const auto tokens = [](std::size_t n) {
        std::string out = "[1";
        for (std::size_t i = 1; i < n; ++i) {
            out += ",1";
        }
        return with_tokens(out + "]");
    };
    EXPECT_EQ(refusal(tokens(65535)), "");
    EXPECT_EQ(refusal(tokens(65536)), "descriptors[0].leaves[0].tokens[65535]: more than 65535 tokens in a leaf");
}

TEST(Payload, ALongKeyIsCutInAMessageBetweenCharacters) {
    const std::string k79(79, 'k');
    EXPECT_EQ(refusal("{\"" + k79 + "kkk\": }").rfind(k79 + "k...: broken JSON", 0), 0U);
    EXPECT_EQ(refusal("{\"" + k79 + "\u00e9\": }").rfind(k79 + "...: broken JSON", 0), 0U);
}

}  // namespace
}  // namespace token_trie::test
