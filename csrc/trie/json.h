#pragma once

#include "trie/error.h"

// Broken input is reported through callbacks; nothing may end the process.
#define JSON_ASSERT(condition) static_cast<void>(0)
#include <nlohmann/json.hpp>

#include <string>

namespace token_trie {

using Json = nlohmann::json;

// Reads a document value by value, so that none is ever held in memory. What is wrong throws Error (payload) with a
// message that begins with its place.
class JsonReader : public nlohmann::json_sax<Json> {
   public:
    bool null() override { return scalar("null"); }
    bool boolean(bool) override { return scalar("a boolean"); }
    bool number_float(double, const std::string &) override { return scalar("a fraction"); }
    bool binary(binary_t &) override { return scalar("binary data"); }
    bool parse_error(std::size_t byte, const std::string &, const Json::exception & error) override;

   protected:
    [[noreturn]] static void fail(const std::string & message) { throw Error(Status::payload, message); }
    // Where the reader is, and what a value has to be there; nullptr if anything may be.
    virtual std::string place() const = 0;
    virtual const char * expected() const noexcept = 0;
    // Throws where a value of another kind belongs.
    void refuse_if_expecting(const char * found) const;
    // A value that means nothing.
    virtual bool scalar(const char * found) {
        refuse_if_expecting(found);
        return true;
    }
};

}  // namespace token_trie
