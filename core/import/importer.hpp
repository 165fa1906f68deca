#pragma once
/// From arguments to a recipe, step by step: what import_arguments goes through.

#include "core/import/given.hpp"
#include "core/import/import.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The comment on a value for which Megatron-LM was given no argument.
inline constexpr const char* kMegatronDefault = "Megatron-LM's default";

/// "98, 2,0" to its parts, without blanks around them.
[[nodiscard]] std::vector<std::string> parts_of(const std::string& text, char between);

/// A number as a recipe has it: whole where it is.
[[nodiscard]] Value number_value(double number);

/// The kind of model that a program of Megatron-LM trains.
enum class Trains : uint8_t { decoder, hybrid, bert, t5, ict };

class Importer {
public:
  explicit Importer(const ShellCommand& command);
  /// The arguments are `given`, in place of the command's words.
  Importer(const ShellCommand& command, GivenArguments given);

  [[nodiscard]] ImportedRecipe run();

private:
  [[noreturn]] static void refuse(const std::string& message, const std::string& hint = "");
  void set(const std::string& key, Value value, const std::string& by);
  /// Says which argument it comes from; Megatron's default if that was not given.
  void set_from(const std::string& key, Value value, std::string_view argument);
  void comment(const std::string& text);
  [[nodiscard]] bool is_set(const char* key) const;
  [[nodiscard]] int64_t integer(const char* key, int64_t otherwise) const;
  void conflicts() const;
  void required() const;
  /// An argument that is a value on its own.
  void take(const GivenArgument& argument);
  void no_equivalent(const GivenArgument& argument, Becomes becomes, std::string_view reason);
  /// The meaning of a word in a recipe, by the table.
  static std::string meaning(const GivenArgument& argument);
  void model();
  /// Encoders, and encoder-decoders.
  void bert();
  void t5();
  void retriever();
  /// The learned positions that an encoder of Megatron-LM has.
  void encoder_positions(const char* model) const;
  void window();
  /// A mixture of experts.
  void mixture();
  /// Sets the layers that have experts.
  void mixture_layers(const GivenArgument& freq);
  /// The argument that has a letter for each layer; null: all layers are alike.
  [[nodiscard]] const GivenArgument* pattern() const;
  /// Layers by that pattern.
  void hybrid(const GivenArgument& given);
  /// Whether the program trains a decoder, and not what BERT's sentences need.
  [[nodiscard]] bool decodes() const;
  void positions();
  /// Sets the layers whose queries and keys rotate.
  void rotating_layers();
  /// Multi-head latent attention.
  void latent_attention();
  /// Ranks that the launcher starts; 0 if it does not say.
  [[nodiscard]] int64_t world() const;
  void layout();
  /// Experts are sharded over the ranks of a stage: data-parallel ones, too.
  void fewest_data_ranks();
  void zero();
  void pipeline();
  [[nodiscard]] int64_t chunks(int64_t stages, int64_t layers) const;
  /// Stages that --pipeline-model-parallel-layout writes out.
  void written_layout(int64_t stages, const GivenArgument& given);
  void uneven_layout(int64_t stages, int64_t layers, int64_t virtual_stages);
  void recompute();
  void full_recompute(const char* by);
  void selective_recompute(const char* by);
  void precision();
  void optimizer();
  void schedule();
  void batch();
  void evaluation();
  void data();
  void data_of_splits();
  /// Corpora of sentences, for BERT, T5 and retrievers.
  void masked_data(const GivenArgument& paths);
  /// The paths of a blend, and their shares.
  void blended_data(const GivenArgument& paths);
  /// The loader's way through the samples of Megatron's order.
  void loader();
  void ict_data();
  void tokenizer();
  /// A tokenizer that is read from a file; false if the type is another.
  bool tokenizer_of_file(const std::string& type);
  void word_pieces(const std::string& type);
  void others();

  const ShellCommand& command_;
  Trains trains_;
  GivenArguments given_;
  ImportedRecipe result_;
};

} // namespace mh
