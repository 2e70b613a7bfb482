"""Kernel names by category: those that the lab's profiles hold, and neighbours that must not be confused."""

from __future__ import annotations

import pytest

from gpuops.engines.profiling import UNCLASSIFIED, categories

# The busiest kernels of a decode step of DeepSeek-V4 on an H200, SGLang 0.5.15.post1 with its sm_120 branches, stock and with the kernel pack.
LAB = {
    "_tiled_sparse_decode_kernel": "attention",
    "mla_decode_split": "attention",
    "mla_decode_combine": "attention",
    "void sm90::fwd::sparse_attn_fwd_kernel<sm90::fwd::KernelTemplate<512, true>, sm90": "attention",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 1536u>": "gemm",
    "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT": "gemm",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false": "gemm",
    "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<float": "gemm",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_": "gemm",
    "fused_moe_kernel": "moe",
    "void moe_align_block_size_small_batch_expert_kernel<int, 256>": "moe",
    "void moe_sum_reduce_warp_per_token_vec_kernel<8>": "moe",
    "_router_triton_kernel": "moe",
    "hc_split_sinkhorn_kernel__kernel": "mhc",
    "mhc_post_tilelang_kernel": "mhc",
    "_hc_head_kernel": "mhc",
    "linear_partials": "mhc",
    "pre_finish": "mhc",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at": "glue",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>": "glue",
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::f": "glue",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>": "sampling",
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<a": "glue",
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>": "glue",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda": "copies",
}
OTHERS = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>": "communication",
    "fp8_paged_mqa_logits_kernel_kernel": "indexer",
    "void (anonymous namespace)::topk_transform_kernel<512>(TopKParams)": "indexer",
    "indexer_logits": "indexer",
    "indexer_topk": "indexer",
    "void (anonymous namespace)::fused_store_indexer_cache<128>": "indexer",
    "void (anonymous namespace)::fused_store_flashmla_cache<64>": "attention",
    "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>": "attention",
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<1u, (deep_gemm::GemmType)2>": "moe",
    "void (anonymous namespace)::topkGatingSoftmax<float, 8>": "moe",
    "void (anonymous namespace)::moe_hash_topk_fused<int>": "moe",
    "_page_split_kernel": "copies",
    "void (anonymous namespace)::per_token_group_quant_8bit_v2_kernel<128>": "glue",
    "norm_quantise": "glue",
    "swiglu_quantise": "glue",
    "triton_poi_fused_add_mul_3": "glue",
    "triton_tem_fused_mm_5": "gemm",
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>": "sampling",
}


@pytest.mark.parametrize(("name", "category"), [*LAB.items(), *OTHERS.items()])
def test_a_kernel_belongs_to_its_category(name, category):
    assert categories().of(name) == category


def test_a_name_that_nobody_knows_is_unclassified_and_is_not_guessed():
    assert categories().of("zz9_plural_z_alpha") == UNCLASSIFIED
    assert categories().of("void ") == UNCLASSIFIED


def test_every_rule_names_a_category_that_is_shown():
    known = categories()
    assert {rule.category for rule in [*known.gpu, *known.cpu]} <= set(known.titles)
