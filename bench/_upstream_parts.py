"""Upstream's modules, made by its own classes in the sizes of a model of ours. They must be importable already."""

import importlib
from collections.abc import Sequence
from typing import Any

from torch import nn

from server.engines.cosyvoice.config import FlowConfig, LlmConfig, VocoderConfig


def body_of(config: LlmConfig) -> nn.Module:
    """Qwen2 by `transformers`, as upstream has it. Its masks are left out: they are all ones, and their length is that
    of the newest input alone, which newer releases take for the whole.
    """
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()  # about names that its newer releases deprecate
    body = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=config.vocab, hidden_size=config.hidden, num_hidden_layers=config.layers,
            num_attention_heads=config.heads, num_key_value_heads=config.kv_heads, intermediate_size=config.ffn,
            rope_theta=config.rope_theta, rms_norm_eps=config.norm_eps, tie_word_embeddings=True,
        )
    )  # fmt: skip
    forward = body.model.forward

    def without_mask(*args: Any, **options: Any) -> Any:
        return forward(*args, **{**options, "attention_mask": None})

    body.model.forward = without_mask
    return body  # type: ignore[no-any-return]


def flow_of(config: FlowConfig) -> nn.Module:
    """From codes to mel."""
    flow = importlib.import_module("cosyvoice.flow.flow")
    matching = importlib.import_module("cosyvoice.flow.flow_matching")
    encoders = importlib.import_module("cosyvoice.transformer.upsample_encoder")
    omegaconf = importlib.import_module("omegaconf")
    shared = {
        "input_size": config.input_size, "output_size": config.mels, "spk_embed_dim": config.speaker_size,
        "vocab_size": config.codes, "input_frame_rate": 25, "token_mel_ratio": config.frames_per_code,
        "pre_lookahead_len": config.lookahead,
    }  # fmt: skip
    block = config.frames_per_code * config.block
    if config.version == 2:
        assert config.encoder is not None
        assert config.unet is not None
        estimator = importlib.import_module("cosyvoice.flow.decoder").CausalConditionalDecoder(
            in_channels=4 * config.mels, out_channels=config.mels, channels=list(config.unet.channels), dropout=0.0,
            attention_head_dim=config.unet.head_dim, n_blocks=config.unet.blocks,
            num_mid_blocks=config.unet.mid_blocks, num_heads=config.unet.heads, act_fn="gelu",
            static_chunk_size=block, num_decoding_left_chunks=-1,
        )  # fmt: skip
    else:
        assert config.dit is not None
        estimator = importlib.import_module("cosyvoice.flow.DiT.dit").DiT(
            dim=config.dit.dim, depth=config.dit.depth, heads=config.dit.heads, dim_head=config.dit.head_dim,
            ff_mult=config.dit.ff_mult, mel_dim=config.mels, mu_dim=config.mels, spk_dim=config.mels,
            out_channels=config.mels, static_chunk_size=block, num_decoding_left_chunks=-1,
        )  # fmt: skip
    parameters = omegaconf.DictConfig(
        {
            "sigma_min": 1e-6, "solver": "euler", "t_scheduler": "cosine", "training_cfg_rate": 0.2,
            "inference_cfg_rate": config.guidance, "reg_loss_type": "l1",
        }
    )  # fmt: skip
    decoder = matching.CausalConditionalCFM(
        in_channels=240, n_spks=1, spk_emb_dim=config.mels, cfm_params=parameters, estimator=estimator
    )
    if config.version == 2:
        assert config.encoder is not None
        encoder = encoders.UpsampleConformerEncoder(
            output_size=config.encoder.dim, attention_heads=config.encoder.heads, linear_units=config.encoder.ffn,
            num_blocks=config.encoder.blocks, dropout_rate=0.0, positional_dropout_rate=0.0,
            attention_dropout_rate=0.0, normalize_before=True, input_layer="linear",
            pos_enc_layer_type="rel_pos_espnet", selfattention_layer_type="rel_selfattn",
            input_size=config.input_size, use_cnn_module=False, macaron_style=False, static_chunk_size=config.block,
        )  # fmt: skip
        return flow.CausalMaskedDiffWithXvec(encoder=encoder, decoder=decoder, **shared)  # type: ignore[no-any-return]
    assert config.dit is not None
    layer = encoders.PreLookaheadLayer(
        in_channels=config.input_size, channels=config.dit.lookahead_channels, pre_lookahead_len=config.lookahead
    )
    return flow.CausalMaskedDiffWithDiT(pre_lookahead_layer=layer, decoder=decoder, **shared)  # type: ignore[no-any-return]


def vocoder_options(config: VocoderConfig) -> dict[str, Any]:
    """What a vocoder of theirs is made with."""
    predictors = importlib.import_module("cosyvoice.hifigan.f0_predictor")
    third = config.version == 3
    make = predictors.CausalConvRNNF0Predictor if third else predictors.ConvRNNF0Predictor
    return {
        "in_channels": config.mels, "base_channels": config.base_channels, "nb_harmonics": config.harmonics,
        "sampling_rate": config.sample_rate, "nsf_alpha": config.sine_level, "nsf_sigma": config.noise_level,
        "nsf_voiced_threshold": config.voiced_above, "upsample_rates": list(config.upsample_rates),
        "upsample_kernel_sizes": list(config.upsample_kernels),
        "istft_params": {"n_fft": config.n_fft, "hop_len": config.hop},
        "resblock_kernel_sizes": list(config.kernels), "resblock_dilation_sizes": _lists(config.dilations),
        "source_resblock_kernel_sizes": list(config.source_kernels),
        "source_resblock_dilation_sizes": _lists(config.source_dilations), "lrelu_slope": config.slope,
        "audio_limit": config.limit,
        "f0_predictor": make(num_class=1, in_channels=config.mels, cond_channels=config.f0_channels),
        **({"conv_pre_look_right": config.lookahead} if third else {}),
    }  # fmt: skip


def _lists(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(row) for row in rows]
