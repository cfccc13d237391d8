#pragma once

#include "trie/trie.h"

// Broken input is reported through callbacks; nothing may end the process.
#define JSON_ASSERT(condition) static_cast<void>(0)
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace token_trie {

using Json = nlohmann::json;

// What a value of a document has to be. Constant tables of these describe what is known of one; all else is ignored.
struct JsonShape {
    enum class Kind { object, array, string, token };

    int id;  // of the document's, below 32
    Kind kind;
    // NOLINTNEXTLINE(readability-redundant-member-init): for those without one
    std::string_view key = {};          // in the object around it
    bool is_required = false;           // by that object
    const JsonShape * inner = nullptr;  // of an object, for its keys; of an array, for its elements
    std::size_t n_inner = 0;
};

// Reads a document value by value, so that none is ever held in memory. What is wrong throws Error (payload, limit)
// with a message that begins with its place.
class JsonReader : public nlohmann::json_sax<Json> {
   public:
    // name: the document's, where a place has no other.
    JsonReader(const JsonShape & root, const char * name) : name_(name), next_(&root) {}

    bool null() override { return scalar("null"); }
    bool boolean(bool) override { return scalar("a boolean"); }
    bool number_integer(std::int64_t value) override;
    bool number_unsigned(std::uint64_t value) override;
    bool number_float(double, const std::string & text) override;
    bool binary(binary_t &) override { return scalar("binary data"); }
    bool string(std::string & value) override;
    bool key(std::string & name) override;
    bool start_object(std::size_t) override { return open(JsonShape::Kind::object, "an object"); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(JsonShape::Kind::array, "an array"); }
    bool end_array() override { return close(); }
    bool parse_error(std::size_t byte, const std::string &, const Json::exception & error) override;

   protected:
    // Throws Error, with the place of the value that is read before its parts, where that is not as it has to be.
    template <typename... Parts>
    void refuse_if(bool is_broken, Status status, const Parts &... parts) const {
        if (is_broken) {
            throw Error(status, place(), ": ", parts...);
        }
    }
    // The place of the value that is read, such as descriptors[0].leaves[3].tokens[1].
    std::string place() const;

    // Values of the document's shapes, as they come.
    virtual void on_open(int /*id*/) {}
    virtual void on_close(int /*id*/) {}
    virtual void on_string(int id, std::string & value) = 0;
    virtual void on_token(int id, Token token) = 0;

   private:
    struct Open {
        const JsonShape * shape;  // null: ignored
        std::string key;          // in the object around it, as messages name it
        std::uint64_t index = 0;  // of an array: values so far
        std::uint32_t seen = 0;   // of an object: keys, by id
    };

    // The place of the object or array that is open.
    std::string place_of_open() const;
    // Whether the object that is open has had this key.
    bool has(int id) const noexcept { return (open_.back().seen >> id & 1U) != 0; }
    template <typename Number>
    bool number(std::int64_t value, const Number & shown);
    bool scalar(const char * found);
    bool open(JsonShape::Kind kind, const char * found);
    bool close();
    bool advance();
    // Throws where a value of another kind belongs.
    void refuse_if_expecting(const char * found) const;

    const char * name_;
    std::vector<Open> open_;
    const JsonShape * next_;  // of the value that comes next; null: any
    std::string key_;         // its key
};

}  // namespace token_trie
