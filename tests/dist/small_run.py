"""The recipe of a small model that tests of launchers start, and the machine that plans are made for."""


def write_recipe(path, *lines):
    """The recipe of a llama of two layers on mock data, 4 samples a step, with further lines."""
    path.write_text("\n".join([
        'name = "tiny"', 'precision = "fp32"', 'model = { use = "llama", layers = 2, hidden = 32, heads = 4, seq_length = 16 }',
        'data = { use = "mock" }', "batch = { global = 4, micro = 1 }", *lines, ""]))


def write_hardware(folder, ranks):
    """The device `mine` in folder/presets/hardware.toml: nodes of so many ranks of a CPU."""
    presets = folder / "presets"
    presets.mkdir(parents=True, exist_ok=True)
    (presets / "hardware.toml").write_text("\n".join([
        "[mine]", 'device = "cpu"', "bf16_tflops = 1", "fp32_tflops = 1", "memory_gib = 4", "memory_tb_s = 0.1", "link_gb_s = 2",
        "network_gb_s = 1", f"node = {{ ranks = {ranks} }}", ""]))
