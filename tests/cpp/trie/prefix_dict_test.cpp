#include "trie/prefix_dict.h"

#include "support.h"

#include <sstream>

namespace token_trie::test {
namespace {

PrefixDict read(const std::string & json) {
    std::istringstream in(json);
    return read_prefix_dict(in);
}

std::vector<Tokens> members(const PrefixDict & dict) {
    std::vector<Tokens> out;
    for (std::size_t i = 0; i < dict.members.size(); ++i) {
        const auto begin = dict.members.tokens.begin();
        out.emplace_back(begin + static_cast<std::ptrdiff_t>(dict.members.offsets[i]),
                         begin + static_cast<std::ptrdiff_t>(dict.members.offsets[i + 1]));
    }
    return out;
}

TEST(PrefixDict, ABeginningWithoutAKeyAndOneThatMayEndAreMembers) {
    const PrefixDict dict = read(R"({"prefix_dict": {"225": [9, 7, 5], "225_7": [2, 8], "225_5": []}})");
    EXPECT_EQ(members(dict), (std::vector<Tokens>{{5}, {7}, {7, 8}, {9}}));
    EXPECT_EQ(dict.start, 225);
    EXPECT_EQ(dict.end, 2);
    EXPECT_EQ(dict.n_ids_skipped + dict.n_keys_unreached, 0U);
}

TEST(PrefixDict, SettingsMayStandOnEitherSideOfTheKeys) {
    const std::string keys = R"("prefix_dict": {"1": [7], "1, 7": [8, 0]})";
    const std::string settings = R"("start_token_id": 1, "end_token_id": 0, "sep": ", ")";
    for (const auto & [first, second] : {std::pair(keys, settings), std::pair(settings, keys)}) {
        const PrefixDict dict = read(std::string("{").append(first).append(",").append(second).append("}"));
        EXPECT_EQ(members(dict), (std::vector<Tokens>{{7}, {7, 8}}));
        EXPECT_EQ(dict.sep, ", ");
    }
}

// As a pipe is.
class ReadOnce : public std::stringbuf {
   public:
    using std::stringbuf::stringbuf;

   protected:
    pos_type seekoff(off_type, std::ios_base::seekdir, std::ios_base::openmode) override { return -1; }
    pos_type seekpos(pos_type, std::ios_base::openmode) override { return -1; }
};

TEST(PrefixDict, WhatCanBeReadOnceIsReadWhereTheSeparatorStandsFirst) {
    const auto read_once = [](const std::string & json) {
        ReadOnce buffer(json);
        std::istream in(&buffer);
        return read_prefix_dict(in);
    };
    const std::string keys = R"("prefix_dict": {"225": [7], "225, 7": [8]})";
    const std::string sep = R"("sep": ", ")";
    EXPECT_EQ(members(read_once("{" + sep + "," + keys + "}")), (std::vector<Tokens>{{7, 8}}));
    EXPECT_EQ(message_of([&] { read_once("{" + keys + "," + sep + "}"); }),
              "sep: comes after the keys, in what can be read only once");
}

TEST(PrefixDict, WhatIsNoTokenIsSkippedAndCounted) {
    const PrefixDict dict = read(R"({"prefix_dict": {"225": [-1, 2147483648, 99999999999999999999, 7, 7]}})");
    EXPECT_EQ(members(dict), std::vector<Tokens>{{7}});
    EXPECT_EQ(dict.n_ids_skipped, 3U);
}

TEST(PrefixDict, KeysThatNothingLeadsToAreNamed) {
    const PrefixDict dict = read(
        R"({"prefix_dict": {"225": [7, 2147483647], "225_7": [2], "225_7_2": [9], "225_8": [1], "225_07": [1], "x": [1],
            "225_7_": [1], "": [1], "224": [1]}})");
    EXPECT_EQ(members(dict), (std::vector<Tokens>{{7}, {2147483647}}));
    EXPECT_EQ(dict.n_keys_unreached, 7U);
    EXPECT_EQ(dict.keys_unreached, (std::vector<std::string>{"225_07", "x", "225_7_", "", "225_7_2"}));
}

TEST(PrefixDict, UnknownMembersOfTheRootAreSkippedWhole) {
    const PrefixDict dict = read(R"({"other": {"prefix_dict": {"225": "x"}, "sep": 1}, "list": [[{"sep": null}]],
                 "prefix_dict": {"225": [7]}, "more": 1.5})");
    EXPECT_EQ(members(dict), std::vector<Tokens>{{7}});
}

TEST(PrefixDict, WhatIsWrongIsRefusedWithItsPlace) {
    const std::pair<const char *, const char *> cases[] = {
        {"[]", "configuration: an array where an object belongs"},
        {"7", "configuration: a number where an object belongs"},
        {"{}", R"(configuration: the key "prefix_dict" is missing)"},
        {R"({"prefix_dict": []})", "prefix_dict: an array where an object belongs"},
        {R"({"prefix_dict": null})", "prefix_dict: null where an object belongs"},
        {R"({"prefix_dict": {}})", "prefix_dict: no key"},
        {R"({"prefix_dict": {"225": 7}})", R"(prefix_dict["225"]: a number where an array belongs)"},
        {R"({"prefix_dict": {"225": {}}})", R"(prefix_dict["225"]: an object where an array belongs)"},
        {R"({"prefix_dict": {"225": [7, [8]]}})", R"(prefix_dict["225"][1]: an array where a token id belongs)"},
        {R"({"prefix_dict": {"225": [7, -3, "8"]}})", R"(prefix_dict["225"][2]: a string where a token id belongs)"},
        {R"({"prefix_dict": {"225": [1.5]}})", R"(prefix_dict["225"][0]: a fraction where a token id belongs)"},
        {R"({"prefix_dict": {"9": [7]}})", R"(prefix_dict: no key "225", which start_token_id begins with)"},
        {R"({"prefix_dict": {"225": [2, 7]}})",
         R"(prefix_dict["225"]: may end at once; an empty answer is no member of a set)"},
        {R"({"prefix_dict": {"225": [7], "225": [8]}})", "prefix_dict: 1 of its keys come twice"},
        {R"({"sep": "|", "prefix_dict": {"225": [7]}, "sep": "_"})", "sep: the key comes twice"},
        {R"({"start_token_id": 1, "start_token_id": 1, "prefix_dict": {"1": [7]}})",
         "start_token_id: the key comes twice"},
        {R"({"end_token_id": 1, "prefix_dict": {"225": [7]}, "end_token_id": 2})", "end_token_id: the key comes twice"},
        {R"({"prefix_dict": {"225": [7]}, "prefix_dict": {"225": [8]}})", "prefix_dict: the key comes twice"},
        {R"({"start_token_id": "1", "prefix_dict": {"1": [7]}})", "start_token_id: a string where a token id belongs"},
        {R"({"end_token_id": -1, "prefix_dict": {"225": [7]}})", "end_token_id: -1 is not a token id"},
        {R"({"end_token_id": 225, "prefix_dict": {"225": [7]}})", "end_token_id: 225 is the start token too"},
        {R"({"sep": 1, "prefix_dict": {"225": [7]}})", "sep: a number where a string belongs"},
        {R"({"sep": "", "prefix_dict": {"225": [7]}})", R"(sep: "": it does not separate token ids)"},
        {R"({"sep": "1", "prefix_dict": {"225": [7]}})", R"(sep: "1": it does not separate token ids)"},
    };
    for (const auto & [json, message] : cases) {
        EXPECT_EQ(message_of([json = json] { read(json); }), message) << json;
    }
    const std::string broken = message_of([] { read(R"({"prefix_dict": {"225": [7,)"); });
    EXPECT_EQ(broken.rfind(R"(prefix_dict["225"][1]: broken JSON at byte 28: )", 0), 0U) << broken;
}

}  // namespace
}  // namespace token_trie::test
