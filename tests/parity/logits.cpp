// logits DIR IN OUT: the logits [B, T, vocabulary] that the model of a Hugging Face directory gives for "tokens" [B, T]
// of the safetensors file IN, as "logits" in OUT. Exit code 0, or 1 with a message.
#include <cstdio>
#include <exception>

#include "tests/support/local_model.hpp"
#include "worker_runtime/worker/model_choice.hpp"

using namespace dtrun::runtime;

namespace {

void write_logits(const std::string& directory, const std::string& in, const std::string& out) {
  testing::LocalModel local(make_model(read_model_directory(directory)));
  std::vector<SafetensorsReader> parts;
  for (const auto& file : weight_files(directory)) parts.emplace_back(file);
  load_tensors(parts, local.values());
  const SafetensorsReader input(in);
  const auto tokens = Tensor::empty(input.entry("tokens").shape, DType::i32, local.activation_arena);
  input.read("tokens", tokens);
  Tensor x;
  for (std::size_t i = 0; i < local.model.size(); ++i) {
    Tape tape(local.context, Tape::Mode::inference);
    x = local.model.unit(i).run(tape, x, {tokens, {}});
  }
  write_safetensors(out, {{"logits", x}});
}

}  // namespace

int main(int argc, char* argv[]) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: logits DIR IN OUT\n");
    return 2;
  }
  try {
    write_logits(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "logits: %s\n", error.what());
    return 1;
  }
}
