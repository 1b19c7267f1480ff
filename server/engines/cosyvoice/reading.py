"""A model's shapes from its files: `cosyvoice2.yaml` or `cosyvoice3.yaml`, and the Qwen body's `config.json`."""

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Final

from server.engines.cosyvoice.config import (
    ConformerConfig,
    DitConfig,
    FlowConfig,
    LlmConfig,
    ModelConfig,
    ModelVersion,
    SamplingConfig,
    UNetConfig,
    VocoderConfig,
)
from server.engines.cosyvoice.sections import ModelError, Section, one_line, parse_yaml, read_text

VERSIONS: Final[tuple[ModelVersion, ...]] = (2, 3)
BODY_FOLDER: Final = "CosyVoice-BlankEN"
_CLASSES: Final[dict[int, dict[str, str]]] = {
    2: {"llm": "Qwen2LM", "flow": "CausalMaskedDiffWithXvec", "hift": "HiFTGenerator"},
    3: {"llm": "CosyVoice3LM", "flow": "CausalMaskedDiffWithDiT", "hift": "CausalHiFTGenerator"},
}


def _defaults(kind: type) -> dict[str, Any]:
    return {each.name: each.default for each in fields(kind) if each.default is not MISSING}


@dataclass(frozen=True, slots=True)
class BodySizes:
    """Of the LLM's Qwen2 body, which the YAML file does not tell."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6


def yaml_name(version: ModelVersion) -> str:
    """Of the file that describes a model of this version."""
    return f"cosyvoice{version}.yaml"


def read_config(folder: Path, body: BodySizes | None = None) -> ModelConfig:
    """Of the model in `folder`. `body` stands for a `config.json` that is not there. Raises ModelError."""
    there = [version for version in VERSIONS if (folder / yaml_name(version)).is_file()]
    if len(there) != 1:
        names = " and ".join(yaml_name(version) for version in VERSIONS)
        raise ModelError(f"{folder}: must hold exactly one of {names}, has {'both' if there else 'neither'}")
    file = folder / yaml_name(there[0])
    sizes = body or read_body(folder / BODY_FOLDER / "config.json")
    return parse_config(read_text(file), str(file), there[0], sizes)


def read_body(file: Path) -> BodySizes:
    """The sizes that a Qwen2 `config.json` tells. Raises ModelError."""
    try:
        found = json.loads(read_text(file))
    except (ValueError, RecursionError) as problem:
        raise ModelError(f"{file}: is not JSON: {one_line(problem)}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{file}: must be a JSON object")
    if found.get("model_type", "qwen2") != "qwen2":
        raise ModelError(f"{file}: model_type: must be qwen2, is {str(found['model_type'])[:50]!r}")
    body = Section(found, str(file))
    defaults = _defaults(BodySizes)
    heads = body.whole("num_attention_heads")
    sizes = BodySizes(
        hidden=body.whole("hidden_size"),
        layers=body.count("num_hidden_layers"),
        heads=heads,
        kv_heads=body.whole("num_key_value_heads", heads),
        ffn=body.whole("intermediate_size"),
        vocab=body.whole("vocab_size"),
        rope_theta=body.number("rope_theta", defaults["rope_theta"]),
        norm_eps=body.number("rms_norm_eps", defaults["norm_eps"]),
    )
    if sizes.hidden % sizes.heads or sizes.heads % sizes.kv_heads or sizes.hidden // sizes.heads % 2:
        raise ModelError(
            f"{file}: hidden_size {sizes.hidden}, num_attention_heads {heads} and num_key_value_heads"
            f" {sizes.kv_heads} do not fit together"
        )
    return sizes


def parse_config(text: str, file: str, version: ModelVersion, body: BodySizes) -> ModelConfig:
    """Of a YAML file's text; `file` names it in messages. Raises ModelError."""
    top = parse_yaml(text, file)
    for part, name in _CLASSES[version].items():
        top.section(part).expect_class(name)
    rate = top.whole("sample_rate", 24_000)
    llm, flow = _llm(top.section("llm"), version, body), _flow(top.section("flow"), version)
    if llm.codes != flow.codes:
        raise ModelError(f"{file}: llm.speech_token_size {llm.codes} and flow.vocab_size {flow.codes} must be equal")
    sampling = top.section("llm").section("sampling", {})
    defaults = SamplingConfig()
    return ModelConfig(
        version=version,
        llm=llm,
        flow=flow,
        vocoder=_vocoder(top.section("hift"), version, rate),
        sampling=SamplingConfig(
            top_p=sampling.number("top_p", defaults.top_p),
            top_k=sampling.whole("top_k", defaults.top_k),
            window=sampling.whole("win_size", defaults.window),
            repeat_share=sampling.number("tau_r", defaults.repeat_share),
        ),
        sample_rate=rate,
        mel_top_hz=top.section("feat_extractor", {}).number_or_none("fmax"),
    )


def version_in(text: str, file: str) -> ModelVersion:
    """Of the model that a YAML file's text describes, by what it names. Raises ModelError."""
    found = parse_yaml(text, file).section("llm").class_name
    for version in VERSIONS:
        if found == _CLASSES[version]["llm"]:
            return version
    names = " or ".join(_CLASSES[version]["llm"] for version in VERSIONS)
    raise ModelError(f"{file}: llm: must be !new:...{names}, is {found[:60]!r}")


def _llm(llm: Section, version: ModelVersion, body: BodySizes) -> LlmConfig:
    for name in ("llm_input_size", "llm_output_size"):
        if llm.whole(name) != body.hidden:
            llm.refuse(name, f"must be the body's hidden size, {body.hidden}, is {llm.whole(name)}")
    text_share, code_share = llm.wholes("mix_ratio", (5, 15), 2)
    return LlmConfig(
        version=version,
        hidden=body.hidden,
        layers=body.layers,
        heads=body.heads,
        kv_heads=body.kv_heads,
        ffn=body.ffn,
        vocab=body.vocab,
        codes=llm.whole("speech_token_size"),
        rope_theta=body.rope_theta,
        norm_eps=body.norm_eps,
        text_share=text_share,
        code_share=code_share,
    )


def _flow(flow: Section, version: ModelVersion) -> FlowConfig:
    defaults = _defaults(FlowConfig)
    decoder = flow.section("decoder")
    estimator = decoder.section("estimator")
    solver = decoder.section("cfm_params", {}).section("content", {})
    solver.fixed("solver", "euler")
    solver.fixed("t_scheduler", "cosine")
    mels = flow.whole("output_size", 80)
    frames_per_code = flow.whole("token_mel_ratio", 2)
    block = estimator.whole("static_chunk_size", defaults["block"] * frames_per_code)
    if block % frames_per_code:
        estimator.refuse("static_chunk_size", f"must be a multiple of {frames_per_code}, is {block}")
    flow.fixed("input_frame_rate", 25)
    estimator.fixed("out_channels", mels)
    input_size = flow.whole("input_size")
    lookahead = flow.whole("pre_lookahead_len", defaults["lookahead"])
    encoder: ConformerConfig | None = None
    unet: UNetConfig | None = None
    dit: DitConfig | None = None
    if version == 2:
        encoder = _conformer(flow.section("encoder"), input_size, block // frames_per_code)
        unet = UNetConfig(
            channels=estimator.wholes("channels"),
            heads=estimator.whole("num_heads"),
            head_dim=estimator.whole("attention_head_dim"),
            blocks=estimator.count("n_blocks"),
            mid_blocks=estimator.count("num_mid_blocks"),
        )
        estimator.fixed("in_channels", 4 * mels)
        estimator.fixed("act_fn", "gelu")
    else:
        ahead = flow.section("pre_lookahead_layer")
        ahead.fixed("pre_lookahead_len", lookahead)
        ahead.fixed("in_channels", input_size)
        for name in ("mel_dim", "mu_dim", "spk_dim"):
            estimator.fixed(name, mels)
        estimator.fixed("long_skip_connection", False)
        dit = DitConfig(
            dim=estimator.whole("dim"),
            depth=estimator.count("depth"),
            heads=estimator.whole("heads"),
            head_dim=estimator.whole("dim_head"),
            ff_mult=estimator.whole("ff_mult"),
            lookahead_channels=ahead.whole("channels"),
        )
    return FlowConfig(
        version=version,
        codes=flow.whole("vocab_size"),
        input_size=input_size,
        speaker_size=flow.whole("spk_embed_dim", defaults["speaker_size"]),
        mels=mels,
        lookahead=lookahead,
        block=block // frames_per_code,
        frames_per_code=frames_per_code,
        guidance=solver.number("inference_cfg_rate", defaults["guidance"]),
        encoder=encoder,
        unet=unet,
        dit=dit,
    )


def _conformer(encoder: Section, input_size: int, block: int) -> ConformerConfig:
    encoder.fixed("input_size", input_size)
    encoder.fixed("output_size", input_size)
    encoder.fixed("normalize_before", True)
    encoder.fixed("use_cnn_module", False)
    encoder.fixed("macaron_style", False)
    encoder.fixed("input_layer", "linear")
    encoder.fixed("pos_enc_layer_type", "rel_pos_espnet")
    encoder.fixed("selfattention_layer_type", "rel_selfattn")
    encoder.fixed("static_chunk_size", block)
    return ConformerConfig(
        dim=encoder.whole("output_size"),
        heads=encoder.whole("attention_heads"),
        ffn=encoder.whole("linear_units"),
        blocks=encoder.count("num_blocks"),
    )


def _vocoder(hift: Section, version: ModelVersion, rate: int) -> VocoderConfig:
    defaults = _defaults(VocoderConfig)
    hift.fixed("sampling_rate", rate)
    transform = hift.section("istft_params", {})
    pitch = hift.section("f0_predictor")
    pitch.fixed("in_channels", hift.whole("in_channels", 80))
    pitch.fixed("num_class", 1)
    rates = hift.wholes("upsample_rates")
    kernels = hift.wholes("resblock_kernel_sizes")
    n_fft, hop = transform.whole("n_fft", defaults["n_fft"]), transform.whole("hop_len", defaults["hop"])
    samples = hop
    for each in rates:
        samples *= each
    if samples * 50 != rate:
        hift.refuse("upsample_rates", f"times the hop of {hop} must be {rate // 50} samples, a 50th of a second")
    return VocoderConfig(
        version=version,
        base_channels=hift.whole("base_channels"),
        upsample_rates=rates,
        upsample_kernels=hift.wholes("upsample_kernel_sizes", count=len(rates)),
        kernels=kernels,
        dilations=hift.lists("resblock_dilation_sizes", len(kernels)),
        source_kernels=hift.wholes("source_resblock_kernel_sizes", count=len(rates)),
        source_dilations=hift.lists("source_resblock_dilation_sizes", len(rates)),
        f0_channels=pitch.whole("cond_channels"),
        mels=hift.whole("in_channels", 80),
        sample_rate=rate,
        harmonics=hift.whole("nb_harmonics", defaults["harmonics"]),
        sine_level=hift.number("nsf_alpha", defaults["sine_level"]),
        noise_level=hift.number("nsf_sigma", defaults["noise_level"]),
        voiced_above=hift.number("nsf_voiced_threshold", defaults["voiced_above"]),
        n_fft=n_fft,
        hop=hop,
        slope=hift.number("lrelu_slope", defaults["slope"]),
        limit=hift.number("audio_limit", defaults["limit"]),
        lookahead=hift.whole("conv_pre_look_right", defaults["lookahead"]),
    )
