// A translation unit that makes the compiler work: the standard library's heavy headers, and
// instances of a template.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

template <int N>
struct Row {
  std::map<int, std::vector<std::string>> texts;
  std::unordered_map<std::string, std::function<int(int)>> calls;

  int fill(int count) {
    for (int i = 0; i < count; i++) {
      texts[i].push_back(std::to_string(i * N));
      calls[std::to_string(i)] = [i](int value) { return value * N + i; };
    }
    return calls["1"](N) + Row<N - 1>().fill(count - 1);
  }
};

template <>
struct Row<0> {
  int fill(int count) { return count; }
};

int main(int argc, char **argv) {
  std::regex digits("[0-9]+");
  std::cout << Row<8>().fill(argc) << std::regex_match(argv[0], digits) << '\n';
}
