#pragma once
/// The table of commands in parts, one file per topic, and the options that several commands share.

#include "core/cli/command.hpp"

#include <vector>

namespace mh {

inline const Argument kRecipe{"RECIPE", "recipe file: .lua, .toml or .json"};
inline const Option kSet{
    "--set", "KEY=VALUE", "overrides one value, as in --set optimizer.lr=1e-4", true};
inline const Option kPlugin{
    "--plugin", "FILE", "opens a plugin before those that the recipe names", true};
inline const Option kAllowChange{
    "--allow-change",
    "KEY",
    "lets the recipe differ from that of the run whose weights these are: model.window, or a section "
    "such as model",
    true};

inline const Option kWeightsFormat{
    "--weights-format",
    "NAME",
    "checkpoint format of the weights, where several formats know the folder"};
inline const Option kJson{"--json", "", "as JSON, for programs"};
inline const Option kTokenizer{"--tokenizer", "NAME", "tokenizer, such as byte or gpt2"};
inline const Option kTokenizerOf{"--recipe", "RECIPE", "takes the tokenizer of a recipe"};
inline const Option kTokenizerSet{
    "--set",
    "tokenizer.KEY=VALUE",
    "an option of the tokenizer; `megahost plugins show` lists them",
    true};
inline const Option kScale{"--scale", "", "the same structure shrunk to one rank of this machine"};
inline const Option kScaleToRanks{
    "--scale", "", "the same structure shrunk to this machine: one rank, or --nproc"};
/// Options of a process of a run that no launcher started.
inline const Option kRank{
    "--rank",
    "N",
    "this process's rank, where no launcher says it; with --world-size and --master"};
inline const Option kWorldSize{"--world-size", "N", "number of processes of the run"};
inline const Option kMaster{"--master", "HOST:PORT", "where rank 0 is, and a free port there"};
inline const Option kLocalRank{
    "--local-rank", "N", "rank on its machine, which chooses the GPU; --rank unless given"};

[[nodiscard]] std::vector<Command> training_commands();
[[nodiscard]] std::vector<Command> layout_commands();
[[nodiscard]] std::vector<Command> run_reading_commands();
[[nodiscard]] std::vector<Command> checkpoint_commands();
[[nodiscard]] std::vector<Command> bench_commands();
[[nodiscard]] std::vector<Command> recipe_commands();
[[nodiscard]] std::vector<Command> data_commands();
[[nodiscard]] std::vector<Command> tokenizer_commands();
[[nodiscard]] std::vector<Command> plugin_commands();
[[nodiscard]] std::vector<Command> help_commands();

} // namespace mh
