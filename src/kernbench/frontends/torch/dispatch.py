"""The table of PyTorch's operators: the name of each, and how it runs on ``ahbm``.

A key is the name of an operator without ``aten::``, for all its overloads, or ``name.overload`` for one of them. Forms
of an operator follow the operator itself, without a row: ``name_`` (in place), overloads with ``out=``, and
``_foreach_name`` (a list of tensors). A row is one of

- `kernel`: a function of this package, with the operator's parameters; `factory`: the function gets the operator, too,
- `expression`: an elementwise rule, one launch,
- `VIEW`: a view of the same storage, no launch; `MEMORY`: an uninitialised tensor,
- `DECOMPOSED`: PyTorch replaces the operator by others, each of which has its own row,
- `HOST`: the host runs the operator, with a copy both ways, listed as unmodelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._library.custom_ops import OPDEFS

from kernbench.frontends.torch import (
    bags,
    batch_norm,
    collectives,
    complexes,
    convolution,
    indexing,
    making,
    norms,
    optimizers,
    order,
    pooling,
    products,
    quantised,
    randoms,
    recurrent,
    reductions,
    resampling,
    traced,
)
from kernbench.frontends.torch.pointwise import Rule
from kernbench.frontends.torch.storage import TorchOperator
from kernbench.frontends.torch.tensor import resize
from kernbench.frontends.torch.ways import (
    COMPOSITE,
    HOST,
    MEMORY,
    REFUSED_LAYOUT,
    VIEW,
    VIEW_IN_PLACE,
    OperatorWay,
    decomposition,
    expression,
    factory,
    in_place_of,
    is_composite,
    is_view,
    kernel,
    on_list,
    with_out,
)
from kernbench.kernels import functions
from kernbench.kernels.functions import call

aten = torch.ops.aten

_VIEWS = """
    adjoint alias as_strided _autocast_to_full_precision _autocast_to_reduced_precision broadcast_to ccol_indices
    chunk coalesce col_indices conj contiguous crow_indices detach diagonal dsplit expand_as expand flatten
    _fw_primal hsplit imag _indices indices lift_fresh linalg_diagonal mH mT _make_dual matrix_H moveaxis movedim
    narrow _neg_view numpy_T permute pin_memory positive ravel real _reshape_alias reshape_as reshape resolve_conj
    resolve_neg row_indices select slice_inverse slice split_with_sizes split squeeze swapaxes swapdims tensor_split
    _test_autograd_multiple_dispatch_view to transpose t unbind unflatten unfold _unsafe_view unsqueeze _values values
    view_as_complex view_as_real view_as view vsplit
"""
_MEMORY = """
    empty_like empty_strided empty new_empty_strided new_empty
"""
_DECOMPOSED = """
    absolute adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d _add_batch_dim addmm.dtype
    addmv addr affine_grid_generator_backward affine_grid_generator alias_copy alpha_dropout aminmax arccos arccosh
    arcsin arcsinh arctan2 arctan arctanh argsort argwhere as_strided_copy as_strided_scatter atleast_1d atleast_2d
    atleast_3d avg_pool1d _backward baddbmm.dtype batch_norm_backward _batch_norm_impl_index_backward
    _batch_norm_impl_index _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional batch_norm
    bilinear binary_cross_entropy_backward binary_cross_entropy_with_logits binary_cross_entropy block_diag
    broadcast_tensors can_cast cartesian_prod _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int
    _cast_Long _cast_Short cdist celu chain_matmul chalf channel_shuffle choose_qparams_optimized
    _choose_qparams_per_tensor clip col2im column_stack combinations complex concat concatenate conj_physical
    conv1d conv2d conv3d conv_tbc_backward conv_transpose1d conv_transpose2d conv_transpose3d _convolution.deprecated
    _convolution_double_backward _convolution_mode corrcoef cosine_embedding_loss cosine_similarity count_nonzero cov
    cross_entropy_loss cross ctc_loss cudnn_batch_norm_backward cudnn_batch_norm cudnn_is_acceptable
    _cufft_clear_plan_cache _cufft_get_plan_cache_max_size _cufft_get_plan_cache_size _cufft_set_plan_cache_max_size
    cummaxmin_backward cumprod_backward cumprod cumulative_trapezoid data _debug_has_internal_overlap deg2rad det
    diag_embed diag diagflat diagonal_backward diagonal_copy diagonal_scatter diff digamma _dim_arange dim dist divide
    dropout dstack einsum elu_backward embedding_backward _embedding_bag_sparse_backward embedding_bag
    embedding_sparse_backward _euclidean_dist expand_copy eye fake_quantize_per_channel_affine_cachemask_backward
    fake_quantize_per_channel_affine fake_quantize_per_tensor_affine_cachemask_backward fake_quantize_per_tensor_affine
    fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_fp16_weight fbgemm_linear_int8_weight_fp32_activation
    fbgemm_linear_int8_weight fbgemm_linear_quantize_weight fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix
    feature_alpha_dropout feature_dropout fft_fft2 fft_fft fft_fftn fft_fftshift fft_hfft2 fft_hfft fft_hfftn fft_ifft2
    fft_ifft fft_ifftn fft_ifftshift fft_ihfft2 fft_ihfft fft_ihfftn fft_irfft2 fft_irfft fft_irfftn fft_rfft2 fft_rfft
    fft_rfftn fill_diagonal_ fill fix flatten_dense_tensors fliplr flipud float_power frac frexp frobenius_norm
    _fused_dropout fused_moving_avg_obs_fake_quant gather_backward _gather_sparse_backward gcd ger get_device
    get_gradients glu_backward glu gradient greater_equal greater grid_sampler_2d grid_sampler group_norm gru_cell gru
    hardsigmoid_backward hardswish_backward hardtanh_backward _has_compatible_shallow_copy_type heaviside
    hinge_embedding_loss histogramdd hstack huber_loss_backward huber_loss i0 __iand__ igammac igamma __ilshift__ im2col
    index_fill index_select_backward infinitely_differentiable_gelu_backward inner instance_norm inverse __ior__
    __irshift__ is_complex is_conj is_contiguous is_distributed is_floating_point is_inference is_leaf is_neg is_nonzero
    is_same_size is_signed is_vulkan_available _is_zerotensor isclose isin isneginf isposinf isreal istft item __ixor__
    kl_div kron l1_loss layer_norm lcm ldexp less_equal less lift linalg_cholesky linalg_cond linalg_cross linalg_det
    linalg_eigh linalg_eigvalsh linalg_eigvals linalg_inv linalg_ldl_factor linalg_lu_factor linalg_matmul
    linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm linalg_pinv.default
    linalg_pinv.atol_rtol_float linalg_pinv.rcond_tensor linalg_slogdet linalg_solve_ex linalg_solve linalg_svd
    linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot linear linspace log_sigmoid_backward
    log_sigmoid_forward log_sigmoid log_softmax logaddexp2 logaddexp logdet logit_backward logit logspace lstm_cell lstm
    lu_solve _lu_with_info margin_ranking_loss masked_select_backward matmul matrix_exp_backward matrix_exp matrix_power
    max_pool1d_with_indices max_pool1d max_pool2d max_pool3d max_unpool2d max_unpool3d max.other meshgrid min.other
    miopen_batch_norm_backward mish_backward mse_loss_backward mse_loss msort multi_margin_loss
    multilabel_margin_loss_forward multilabel_margin_loss multiply mvlgamma nan_to_num nanmean nanquantile nansum
    narrow_copy _native_batch_norm_legit_functional _native_batch_norm_legit _native_batch_norm_legit_no_training
    native_channel_shuffle native_dropout_backward native_group_norm_backward native_group_norm negative nextafter
    nll_loss2d_backward nll_loss2d_forward nll_loss2d nll_loss_backward nll_loss_forward nll_loss_nd nll_loss
    _nnpack_available nonzero_numpy norm_except_dim normal.float_float norm not_equal nuclear_norm numel one_hot orgqr
    outer output_nr _pack_padded_sequence_backward _pad_circular _pad_enum _pad_packed_sequence pad_sequence pad
    pairwise_distance pdist permute_copy pinverse pixel_shuffle pixel_unshuffle poisson_nll_loss polar
    _prelu_kernel_backward _prelu_kernel prelu promote_types _propagate_xla_data qr quantile quantized_gru_cell
    quantized_lstm_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell rad2deg randn.default reflection_pad1d_backward
    reflection_pad1d reflection_pad2d_backward reflection_pad2d reflection_pad3d_backward reflection_pad3d relu6
    _remove_batch_dim renorm repeat_interleave.self_Tensor repeat_interleave.self_int replication_pad1d
    replication_pad2d replication_pad3d requires_grad_ _reshape_from_tensor resize_as result_type retain_grad
    retains_grad rms_norm rnn_relu_cell rnn_relu rnn_tanh_cell rnn_tanh rot90 row_stack _rowwise_prune
    rrelu_with_noise_backward rrelu _saturate_weight_to_fp16 _scaled_dot_product_attention_math
    scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu select_scatter selu set_data sgn
    _shape_as_tensor sinc size slice_scatter slogdet slow_conv3d smm smooth_l1_loss _sobol_engine_draw _sobol_engine_ff_
    _sobol_engine_initialize_state_ _sobol_engine_scramble_ soft_margin_loss_backward soft_margin_loss softmax
    softshrink special_bessel_j0 special_bessel_j1 special_digamma special_entr special_erfc special_erfcx
    special_erfinv special_erf special_exp2 special_expit special_expm1 special_gammaincc special_gammainc
    special_gammaln special_i0e special_i0 special_i1e special_i1 special_log1p special_log_ndtr special_log_softmax
    special_logit special_logsumexp special_multigammaln special_ndtri special_ndtr special_polygamma special_psi
    special_round special_sinc special_softmax special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta
    split_with_sizes_copy squeeze_copy sspaddmm stack std_mean std.dim std.default stft storage_offset stride subtract
    sum_to_size svd sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride t_copy take_along_dim take
    tensordot _test_ambiguous_defaults _test_autograd_multiple_dispatch.ntonly _test_check_tensor
    _test_serialization_subcmul _test_string_default thnn_conv2d _thnn_differentiable_gru_cell_backward
    _thnn_differentiable_lstm_cell_backward _thnn_fused_lstm_cell_backward threshold tile _to_cpu to_dense_backward
    to_dense to_mkldnn_backward to_sparse_bsc to_sparse_bsr to_sparse_csc to_sparse_csr to_sparse trace_backward trace
    transpose_copy trapezoid trapz tril triplet_margin_loss triu true_divide type_as unbind_copy unflatten_dense_tensors
    unfold_backward unfold_copy _unpack_dual unsafe_chunk _unsafe_masked_index_put_accumulate _unsafe_masked_index
    unsafe_split_with_sizes unsafe_split unsqueeze_copy _upsample_bicubic2d_aa.vec upsample_bicubic2d
    _upsample_bilinear2d_aa.vec upsample_bilinear2d _upsample_lanczos2d_aa.vec upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_trilinear3d _use_cudnn_rnn_flatten_weight _validate_sparse_bsc_tensor_args _validate_sparse_bsr_tensor_args
    _validate_sparse_compressed_tensor_args _validate_sparse_coo_tensor_args _validate_sparse_csc_tensor_args
    _validate_sparse_csr_tensor_args value_selecting_reduction_backward vander var_mean.dim var_mean.default var.default
    var.dim vdot _version view_copy vstack _weight_norm_differentiable_backward _weight_norm_interface _weight_norm
    where.default _wrapped_linear_prepack _wrapped_quantized_linear_prepacked xlogy zero
"""
_HOST = """
    _add_relu _aminmax _amp_foreach_non_finite_check_and_unscale _amp_update_scale angle _assert_async _assert_scalar
    _assert_tensor_metadata bartlett_window batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt
    batch_norm_gather_stats_with_counts batch_norm_gather_stats batch_norm_stats batch_norm_update_stats
    bernoulli.Tensor binomial blackman_window ccol_indices_copy cholesky_inverse _cholesky_solve_helper cholesky_solve
    cholesky _coalesce _coalesced col_indices_copy _compute_linear_combination _conj_copy
    _conv_depthwise2d conv_depthwise3d conv_tbc _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
    _convert_weight_to_int4pack_for_cpu _convolution.default _copy_from_and_resize copy_sparse_to_sparse copy
    crow_indices_copy _cslt_compress _cslt_sparse_mm _cslt_sparse_mm_search _ctc_loss_backward _ctc_loss
    cudnn_affine_grid_generator_backward cudnn_affine_grid_generator _cudnn_attention_backward _cudnn_attention_forward
    cudnn_convolution_add_relu cudnn_convolution_relu cudnn_convolution_transpose cudnn_convolution _cudnn_ctc_loss
    cudnn_grid_sampler_backward cudnn_grid_sampler _cudnn_init_dropout_state _cudnn_rnn_backward _cudnn_rnn
    _cudnn_rnn_flatten_weight _cummax_helper _cummin_helper dense_dim dequantize detach_copy _dimI _dimV _dirichlet_grad
    _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight _efficient_attention_backward _efficient_attention_forward
    _embedding_bag_dense_backward embedding_renorm _empty_affine_quantized _empty_per_channel_affine_quantized
    empty_permuted empty_quantized _fake_quantize_learnable_per_channel_affine_backward
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_learnable_per_tensor_affine fake_quantize_per_channel_affine_cachemask
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams fake_quantize_per_tensor_affine_cachemask _fft_c2c
    _fft_c2r fft_fftfreq _fft_r2c fft_rfftfreq _fill_mem_eff_dropout_mask_ _flash_attention_backward
    _flash_attention_forward _flash_attention_forward_no_dropout_inplace _foobar fractional_max_pool2d_backward
    fractional_max_pool2d fractional_max_pool3d_backward fractional_max_pool3d from_file _functional_assert_async
    _functional_assert_scalar _functional_sym_constrain_range_for_size _functional_sym_constrain_range _fused_adagrad
    _fused_adam _fused_adamw _fused_moving_avg_obs_fq_helper_functional _fused_moving_avg_obs_fq_helper
    _fused_sdp_choice _fused_sgd _fw_primal_copy geqrf glu_backward_jvp glu_jvp grid_sampler_2d_backward
    _grid_sampler_2d_cpu_fallback_backward _grid_sampler_2d_cpu_fallback grid_sampler_3d_backward grid_sampler_3d
    hamming_window hann_window hash_tensor _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors histogram hspmm _index_put_impl index_reduce _indices_copy indices_copy int_repr
    is_coalesced is_pinned is_set_to kaiser_window _lazy_clone linalg__powsum _linalg_check_errors linalg_cholesky_ex
    _linalg_det _linalg_eigh linalg_eig _linalg_eigvals linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex
    linalg_ldl_solve linalg_lstsq linalg_lu_factor_ex linalg_lu_solve linalg_lu linalg_matrix_exp
    linalg_pinv.atol_rtol_tensor linalg_qr _linalg_slogdet _linalg_solve_ex linalg_solve_triangular _linalg_svd
    linear_backward _logcumsumexp logcumsumexp lstm_mps_backward _lstm_mps lu_unpack _make_dep_token _make_dual_copy
    _make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor _masked_scale masked_scatter_backward
    _masked_softmax_backward _masked_softmax matmul_backward max_pool2d_backward miopen_batch_norm
    miopen_convolution_add_relu miopen_convolution_relu miopen_convolution_transpose miopen_convolution miopen_ctc_loss
    miopen_depthwise_convolution miopen_rnn_backward miopen_rnn _mixed_dtypes_linear mkldnn_adaptive_avg_pool2d_backward
    mkldnn_adaptive_avg_pool2d mkldnn_convolution mkldnn_linear_backward_input mkldnn_linear_backward_weights
    mkldnn_linear_backward mkldnn_linear mkldnn_max_pool2d_backward mkldnn_max_pool2d mkldnn_max_pool3d_backward
    mkldnn_max_pool3d mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight _mkldnn_reshape
    mkldnn_rnn_layer_backward mkldnn_rnn_layer _mkldnn_transpose mode mps_convolution_backward _mps_convolution
    mps_convolution_transpose_backward _mps_convolution_transpose multi_margin_loss_backward
    multilabel_margin_loss_backward _native_multi_head_attention native_norm _neg_view_copy
    _new_zeros_with_same_feature_meta _nnpack_spatial_convolution _nnz nonzero_static normal_functional ormqr
    _padded_dense_to_jagged_forward _pdist_backward _pdist_forward _philox_key_fold_in _philox_key_split _philox_normal
    _philox_uniform _pin_memory poisson polygamma _print put q_per_channel_axis q_per_channel_scales
    q_per_channel_zero_points q_scale q_zero_point qscheme quantize_per_channel quantize_per_tensor_dynamic
    quantize_per_tensor quantized_batch_norm quantized_gru quantized_lstm quantized_max_pool1d quantized_max_pool2d
    quantized_max_pool3d randint_like randint randn.generator random randperm rand range record_stream
    repeat_interleave.Tensor replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
    _reshape_alias_copy _reshape_copy resize_as_sparse _resize_output resize row_indices_copy
    rrelu_with_noise_functional rrelu_with_noise _sample_dirichlet _scaled_dot_product_attention_math_for_mps
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_cudnn_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_flash_attention _scaled_dot_product_fused_attention_overrideable_backward
    _scaled_dot_product_fused_attention_overrideable _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm_v2
    scatter.value_reduce scatter.reduce _segment_reduce_backward segment_reduce select_copy set slice_copy
    _slow_conv2d_backward _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d
    slow_conv_transpose2d slow_conv_transpose3d _spdiags special_airy_ai special_bessel_y0 special_bessel_y1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_hermite_polynomial_he special_hermite_polynomial_h
    special_laguerre_polynomial_l special_legendre_polynomial_p special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w split_copy _spsolve _stack
    _standard_gamma_grad _standard_gamma sym_constrain_range_for_size sym_constrain_range
    _test_autograd_multiple_dispatch.fullcoverage _test_autograd_multiple_dispatch_view_copy _test_functorch_fallback
    _test_optional_filled_intlist _test_optional_floatlist _test_optional_intlist _test_parallel_materialize
    _test_warn_in_autograd _to_dense to_mkldnn to_padded_tensor _to_sparse_bsc _to_sparse_bsr _to_sparse_csc
    _to_sparse_csr _to_sparse_semi_structured _to_sparse _transform_bias_rescale_qkv _transformer_encoder_layer_fwd
    triangular_solve tril_indices _trilinear _triton_multi_head_attention _triton_scaled_dot_attention triu_indices
    unique_dim_consecutive _unique _upsample_bicubic2d_aa_backward _upsample_bicubic2d_aa.default
    _upsample_bilinear2d_aa_backward _upsample_bilinear2d_aa.default _upsample_lanczos2d_aa_backward
    _upsample_lanczos2d_aa.default _use_cudnn_ctc_loss _use_miopen_ctc_loss _validate_compressed_sparse_indices
    _values_copy values_copy view_as_complex_copy view_as_real_copy _weight_int4pack_mm_for_cpu
    _weight_int4pack_mm_with_scales_and_zeros
"""
_NO_STRIDES = ("nested_", "sparse_", "jagged_")
"""Prefixes of operators on tensors that are not strided, which are refused."""

_KERNELS: Mapping[str, Callable[..., Any]] = {
    # products
    "mm.default mm.dtype mm.out mm.dtype_out": products.mm,
    "bmm.default bmm.dtype bmm.out bmm.dtype_out": products.bmm,
    "addmm.default addmm.out": products.addmm,
    "_addmm_activation.default _addmm_activation.out": products.addmm_activation,
    "baddbmm.default baddbmm.out": products.baddbmm,
    "addbmm.default": products.addbmm,
    "dot.default": products.dot,
    "mv.default": products.mv,
    "_grouped_mm.default": products.grouped_mm,
    "_scaled_mm.default _scaled_mm.out": quantised.scaled_mm,
    "_int_mm.default _int_mm.out": quantised.int_mm,
    "_weight_int8pack_mm.default": quantised.weight_int8pack_mm,
    "_convert_weight_to_int4pack.default": quantised.convert_weight_to_int4pack,
    "_weight_int4pack_mm.default": quantised.weight_int4pack_mm,
    # reductions and normalisation
    "sum.default sum.dim_IntList": reductions.sum_elements,
    "mean.default mean.dim": reductions.mean,
    "amax.default": reductions.amax,
    "amin.default": reductions.amin,
    "max.default": reductions.max_elements,
    "min.default": reductions.min_elements,
    "any.default any.dim any.dims _is_any_true.default": reductions.any_elements,
    "all.default all.dim all.dims _is_all_true.default": reductions.all_elements,
    "linalg_vector_norm.default": reductions.linalg_vector_norm,
    "var_mean.correction": reductions.var_mean,
    "var.correction": reductions.var,
    "std.correction": reductions.std,
    "prod.default prod.dim_int": reductions.prod_elements,
    "equal.default": reductions.equal,
    "allclose.default": reductions.allclose,
    "histc.default": reductions.histc,
    "bincount.default": reductions.bincount,
    "smooth_l1_loss_backward.default": reductions.smooth_l1_loss_backward,
    "logsumexp.default": reductions.logsumexp,
    "_safe_softmax.default": reductions.safe_softmax,
    "_softmax.default": reductions.softmax,
    "_log_softmax.default": reductions.log_softmax,
    "_softmax_backward_data.default": reductions.softmax_backward_data,
    "_log_softmax_backward_data.default": reductions.log_softmax_backward_data,
    "native_layer_norm.default": norms.native_layer_norm,
    "native_layer_norm_backward.default": norms.native_layer_norm_backward,
    "_fused_rms_norm.default": norms.fused_rms_norm,
    "_fused_rms_norm_backward.default": norms.fused_rms_norm_backward,
    "native_batch_norm.default": batch_norm.native_batch_norm,
    "native_batch_norm_backward.default": batch_norm.native_batch_norm_backward,
    "_weight_norm_interface_backward.default": norms.weight_norm_interface_backward,
    "_cdist_forward.default": reductions.cdist_forward,
    "_cdist_backward.default": reductions.cdist_backward,
    # order
    "max.dim": order.max_dim,
    "min.dim": order.min_dim,
    "argmax.default": order.argmax,
    "argmin.default": order.argmin,
    "cumsum.default": order.cumsum,
    "cummax.default": order.cummax,
    "cummin.default": order.cummin,
    "sort.default sort.stable": order.sort,
    "topk.default": order.topk,
    "median.default": order.median,
    "median.dim": order.median_dim,
    "nanmedian.default": order.nanmedian,
    "nanmedian.dim": order.nanmedian_dim,
    "kthvalue.default": order.kthvalue,
    "searchsorted.Tensor searchsorted.Scalar": order.searchsorted,
    "bucketize.Tensor bucketize.Scalar": order.bucketize,
    "_unique2.default": order.unique2,
    "unique_dim.default": order.unique_dim,
    "unique_consecutive.default": order.unique_consecutive,
    # indices
    "index_select.default": indexing.index_select,
    "embedding.default": indexing.embedding,
    "embedding_dense_backward.default": indexing.embedding_dense_backward,
    "_embedding_bag.default _embedding_bag_forward_only.default": bags.embedding_bag,
    "_embedding_bag_backward.default": bags.embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward.default": bags.embedding_bag_per_sample_weights_backward,
    "gather.default": indexing.gather,
    "scatter.src scatter.value": indexing.scatter,
    "scatter_.src scatter_.value": indexing.scatter_,
    "scatter_add.default": indexing.scatter_add,
    "scatter_add_.default": indexing.scatter_add_,
    "scatter_reduce.two": indexing.scatter_reduce,
    "scatter_reduce_.two": indexing.scatter_reduce_,
    "index_add.default": indexing.index_add,
    "index_add_.default": indexing.index_add_,
    "index_copy.default": indexing.index_copy,
    "index_copy_.default": indexing.index_copy_,
    "index.Tensor _unsafe_index.Tensor": indexing.index_tensor,
    "index_put.default _unsafe_index_put.default": indexing.index_put,
    "index_put_.default _index_put_impl_.default": indexing.index_put_,
    "nonzero.default": indexing.nonzero,
    "masked_select.default": indexing.masked_select,
    "masked_scatter.default": indexing.masked_scatter,
    # convolution, recurrent cells, resampling
    "convolution.default convolution_overrideable.default": convolution.convolution,
    "convolution_backward.default convolution_backward_overrideable.default": convolution.convolution_backward,
    "max_pool2d_with_indices.default": pooling.max_pool(aten.max_pool2d_with_indices.default, 2),
    "max_pool3d_with_indices.default": pooling.max_pool(aten.max_pool3d_with_indices.default, 3),
    "max_pool2d_with_indices_backward.default": pooling.max_pool_backward(
        aten.max_pool2d_with_indices_backward.default, 2
    ),
    "max_pool3d_with_indices_backward.default": pooling.max_pool_backward(
        aten.max_pool3d_with_indices_backward.default, 3
    ),
    "adaptive_max_pool2d.default": pooling.adaptive_max_pool(aten.adaptive_max_pool2d.default),
    "adaptive_max_pool3d.default": pooling.adaptive_max_pool(aten.adaptive_max_pool3d.default),
    "adaptive_max_pool2d_backward.default": pooling.adaptive_max_pool_backward(
        aten.adaptive_max_pool2d_backward.default, 2
    ),
    "adaptive_max_pool3d_backward.default": pooling.adaptive_max_pool_backward(
        aten.adaptive_max_pool3d_backward.default, 3
    ),
    "avg_pool2d.default": pooling.avg_pool(aten.avg_pool2d.default, 2),
    "avg_pool3d.default": pooling.avg_pool(aten.avg_pool3d.default, 3),
    "avg_pool2d_backward.default": pooling.avg_pool_backward(aten.avg_pool2d_backward.default, 2),
    "avg_pool3d_backward.default": pooling.avg_pool_backward(aten.avg_pool3d_backward.default, 3),
    "_adaptive_avg_pool2d.default": pooling.adaptive_avg_pool(aten._adaptive_avg_pool2d.default),  # noqa: SLF001
    "_adaptive_avg_pool3d.default": pooling.adaptive_avg_pool(aten._adaptive_avg_pool3d.default),  # noqa: SLF001
    "_adaptive_avg_pool2d_backward.default": pooling.adaptive_avg_pool_backward(
        aten._adaptive_avg_pool2d_backward.default,  # noqa: SLF001
        2,
    ),
    "_adaptive_avg_pool3d_backward.default": pooling.adaptive_avg_pool_backward(
        aten._adaptive_avg_pool3d_backward.default,  # noqa: SLF001
        3,
    ),
    "_thnn_fused_lstm_cell.default": recurrent.lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl.default": recurrent.lstm_cell_backward,
    "_thnn_fused_gru_cell.default": recurrent.gru_cell,
    "_thnn_fused_gru_cell_backward.default": recurrent.gru_cell_backward,
    "_pack_padded_sequence.default": recurrent.pack_padded_sequence,
    "upsample_nearest1d_backward.default": resampling.upsample_backward(aten.upsample_nearest1d.default),
    "upsample_nearest2d_backward.default": resampling.upsample_backward(aten.upsample_nearest2d.default),
    "upsample_nearest3d_backward.default": resampling.upsample_backward(aten.upsample_nearest3d.default),
    "_upsample_nearest_exact1d_backward.default": resampling.upsample_backward(aten._upsample_nearest_exact1d.default),  # noqa: SLF001
    "_upsample_nearest_exact2d_backward.default": resampling.upsample_backward(aten._upsample_nearest_exact2d.default),  # noqa: SLF001
    "_upsample_nearest_exact3d_backward.default": resampling.upsample_backward(aten._upsample_nearest_exact3d.default),  # noqa: SLF001
    "upsample_linear1d_backward.default": resampling.upsample_backward(aten.upsample_linear1d.default),
    "upsample_bilinear2d_backward.default": resampling.upsample_backward(aten.upsample_bilinear2d.default),
    "upsample_trilinear3d_backward.default": resampling.upsample_backward(aten.upsample_trilinear3d.default),
    "upsample_bicubic2d_backward.default": resampling.upsample_backward(aten.upsample_bicubic2d.default),
    # optimizers
    "_foreach_norm.Scalar": optimizers.foreach_norm,
    "_amp_foreach_non_finite_check_and_unscale_.default": optimizers.unscale_,
    "_amp_update_scale_.default": optimizers.update_scale_,
    "_fused_sgd_.default _fused_sgd_.tensor_lr": optimizers.fused_sgd_,
    "_fused_adamw_.default _fused_adamw_.tensor_lr": optimizers.fused_adamw_,
    "_fused_adam_.default _fused_adam_.tensor_lr": optimizers.fused_adam_,
    # random numbers
    "multinomial.default": randoms.multinomial,
    "bernoulli.default bernoulli.out": randoms.bernoulli,
    "native_dropout.default": randoms.native_dropout,
    "normal.Tensor_float normal.Tensor_float_out": randoms.normal,
    "normal.float_Tensor normal.float_Tensor_out": randoms.normal,
    "normal.Tensor_Tensor normal.Tensor_Tensor_out": randoms.normal,
    "rand.out rand.generator_out": randoms.rand_out,
    "randn.out randn.generator_out": randoms.randn_out,
    "randint.out randint.generator_out randint.low_out randint.low_generator_out": randoms.randint_out,
    # other
    "resize_.default": lambda x, size, **_: resize(x, tuple(size)),
    "_conj.default _conj_physical.default": complexes.conj,
    "_has_same_storage_numel.default": making.has_same_storage_numel,
}
_COPIES: Mapping[str, Callable[..., Any]] = {
    "fill_.Scalar fill_.Tensor": making.fill,
    "zero_.default": making.zero_,
    "copy_.default": making.copy,
    "_copy_from.default": making.copy_from,
    "_local_scalar_dense.default": making.local_scalar_dense,
    "cat.default cat.out": making.cat,
    "_chunk_cat.default _chunk_cat.out": making.chunk_cat,
    "split_with_sizes_copy.out": making.split_into,
    "repeat.default": making.repeat,
    "flip.default": making.flip,
    "roll.default": making.roll,
    "eye.out eye.m_out": making.eye,
    "linspace.out": making.linspace,
    "logspace.out": making.logspace,
    "constant_pad_nd.default": making.constant_pad,
    "slice_backward.default": making.slice_backward,
    "select_backward.default": making.select_backward,
}
_FACTORIES: Mapping[str, Callable[..., Any]] = {
    "zeros zeros_like new_zeros _efficientzerotensor": making.filled_with(lambda *_, **__: 0),
    "ones ones_like new_ones": making.filled_with(lambda *_, **__: 1),
    "full full_like": making.filled_with(lambda _, number, **__: number),
    "new_full": making.filled_with(lambda _, __, number, **___: number),
    "scalar_tensor": making.filled_with(lambda number, **_: number),
    "arange": making.arange,
    "clone lift_fresh_copy": making.clone,
    "_to_copy": making.to_copy,
}
_DRAWS: Mapping[str, Callable[..., Any]] = {
    "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ uniform_ random_": randoms.draw,
    "rand_like": randoms.drawn_like(aten.uniform_.default),
    "randn_like": randoms.drawn_like(aten.normal_.default),
    "bernoulli.p": randoms.drawn_anew(aten.bernoulli_.float),
    "cauchy": randoms.drawn_anew(aten.cauchy_.default),
    "exponential": randoms.drawn_anew(aten.exponential_.default),
    "geometric": randoms.drawn_anew(aten.geometric_.default),
    "log_normal": randoms.drawn_anew(aten.log_normal_.default),
    "uniform": randoms.drawn_anew(aten.uniform_.default),
}

_SINGLE = """
    exp exp2 log log2 log10 log1p expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid
    silu erf erfc erfinv lgamma neg abs relu floor ceil trunc mul maximum minimum fmax fmin atan2 hypot copysign
"""
"""Operators that are one operation of ``tl``, with the same name."""
_COMPARISONS = "eq ne lt le gt ge signbit isnan isinf isfinite"
EXPRESSIONS: Mapping[str, Rule] = MappingProxyType(
    {name: Rule(call(name), "result") for name in _SINGLE.split()}
    | {name: Rule(call(name), "operands") for name in _COMPARISONS.split()}
    | {
        "add": Rule(functions.scaled("add"), "result"),
        "sub": Rule(functions.scaled("sub"), "result"),
        "rsub": Rule(functions.flipped_sub, "result"),
        "div": Rule(functions.divide, "result"),
        "floor_divide": Rule(functions.floor_divide),
        "remainder": Rule(functions.remainder),
        "fmod": Rule(call("rem"), "result"),
        "pow": Rule(functions.power),
        "square": Rule(functions.square, "result"),
        "reciprocal": Rule(call("recip"), "result"),
        "round": Rule(functions.round_even, "result"),
        "sign": Rule(functions.sign),
        "clamp": Rule(functions.clamp, "result"),
        "clamp_min": Rule(call("maximum"), "result"),
        "clamp_max": Rule(call("minimum"), "result"),
        "hardtanh": Rule(functions.hardtanh, "result"),
        "gelu": Rule(functions.gelu),
        "gelu_backward": Rule(functions.gelu_backward),
        "silu_backward": Rule(functions.silu_backward),
        "sigmoid_backward": Rule(functions.sigmoid_backward),
        "tanh_backward": Rule(functions.tanh_backward),
        "threshold_backward": Rule(functions.threshold_backward),
        "hardsigmoid": Rule(functions.hardsigmoid),
        "hardswish": Rule(functions.hardswish),
        "leaky_relu": Rule(functions.leaky_relu),
        "leaky_relu_backward": Rule(functions.leaky_relu_backward),
        "elu": Rule(functions.elu),
        "softplus": Rule(functions.softplus),
        "softplus_backward": Rule(functions.softplus_backward),
        "mish": Rule(functions.mish),
        "lerp": Rule(functions.lerp),
        "addcmul": Rule(functions.addcmul),
        "addcdiv": Rule(functions.addcdiv),
        "where": Rule(functions.where, "result", (0,)),
        "masked_fill": Rule(functions.masked_fill, "result", (1,)),
        "hardshrink": Rule(functions.hardshrink),
        "hardshrink_backward": Rule(functions.shrink_backward),
        "softshrink_backward": Rule(functions.shrink_backward),
        "logical_not": Rule(functions.logical_not, "operands"),
        "logical_and": Rule(functions.logical("and"), "operands"),
        "logical_or": Rule(functions.logical("or"), "operands"),
        "logical_xor": Rule(functions.logical("xor"), "operands"),
        "bitwise_and": Rule(call("and"), "result"),
        "bitwise_or": Rule(call("or"), "result"),
        "bitwise_xor": Rule(call("xor"), "result"),
        "bitwise_left_shift": Rule(call("shl"), "result"),
        "bitwise_right_shift": Rule(call("shr"), "result"),
        "__lshift__": Rule(call("shl"), "result"),
        "__rshift__": Rule(call("shr"), "result"),
        "__and__": Rule(call("and"), "result"),
        "__or__": Rule(call("or"), "result"),
        "__xor__": Rule(call("xor"), "result"),
        "bitwise_not": Rule(call("not"), "result"),
    }
)
"""Rules of elementwise operators: the function of elements, and the type in which it computes."""

_REFUSED_COLLECTIVE = OperatorWay("refused", collectives.refuse)


@cache
def _decomposed(operator: TorchOperator) -> OperatorWay:
    return COMPOSITE if is_composite(operator) else decomposition(decomposition_table[operator])


DECOMPOSED = OperatorWay(
    "decomposition", lambda operator, args, kwargs: _decomposed(operator).run(operator, args, kwargs)
)


def _rows() -> Iterator[tuple[str, OperatorWay]]:
    """Yield the rows of the table."""
    for names, function in (*_KERNELS.items(), *_COPIES.items()):
        for name in names.split():
            yield name, kernel(function)
    for names, function in (*_FACTORIES.items(), *_DRAWS.items()):
        for name in names.split():
            yield name, factory(function)
    for name, rule in EXPRESSIONS.items():
        yield name, expression(rule)
    for names, way in ((_VIEWS, VIEW), (_MEMORY, MEMORY), (_DECOMPOSED, DECOMPOSED), (_HOST, HOST)):
        for name in names.split():
            yield name, way


def _table() -> Mapping[str, OperatorWay]:
    rows: dict[str, OperatorWay] = {}
    for name, way in _rows():
        assert name not in rows, f"two rows of {name}"
        rows[name] = way
    return MappingProxyType(rows)


TABLE = _table()
CREATES = frozenset(
    [name.partition(".")[0] for names in (*_COPIES, *_FACTORIES, *_DRAWS) for name in names.split()]
) | frozenset(["stack", "_foreach_copy_", "_foreach_zero_", "rand", "randn", "randint"])
"""Names of operators that fill, copy or draw tensors and read no elements otherwise, as initialisation does."""


@cache
def way_of(operator: TorchOperator) -> OperatorWay:
    """Return how an operator runs: by its row in the table, or by the row of the operator of which it is a form."""
    row = _row_of(operator) or _way_of_form(operator)
    if row is not None:
        return row
    return DECOMPOSED if is_composite(operator) or operator in decomposition_table else HOST


def _row_of(operator: TorchOperator) -> OperatorWay | None:
    """Return the row of an operator. For an operator of the program or of a library, return its function."""
    if operator.namespace in collectives.NAMESPACES:
        function = collectives.LOWERINGS.get(operator)
        return _REFUSED_COLLECTIVE if function is None else kernel(function)
    if operator.namespace == traced.NAMESPACE:
        return kernel(traced.LOWERINGS[operator]) if operator in traced.LOWERINGS else None
    if operator.namespace != "aten":
        defined = OPDEFS.get(operator._schema.name)  # noqa: SLF001 - as subclasses use it
        return None if defined is None else kernel(defined._init_fn)  # noqa: SLF001
    name, overload = operator.overloadpacket.__name__, operator._overloadname  # noqa: SLF001
    row = TABLE.get(f"{name}.{overload}")
    has_out = any(argument.is_out for argument in operator._schema.arguments)  # noqa: SLF001
    return TABLE.get(name) if row is None and not has_out else row


def _way_of_form(operator: TorchOperator) -> OperatorWay | None:
    """Return the way of a form of another operator: ``out=``, in place, or on lists; None for any other operator."""
    name = operator.overloadpacket.__name__
    if name.lstrip("_").startswith(_NO_STRIDES):
        return REFUSED_LAYOUT
    by_result = with_out(operator)
    if by_result is not None:
        return by_result
    if torch.Tag.inplace_view in operator.tags:
        return VIEW_IN_PLACE
    if operator.namespace != "aten":
        return VIEW if is_view(operator) else None
    if name.startswith("_foreach_"):
        return on_list(EXPRESSIONS.get(name.removeprefix("_foreach_").rstrip("_")))
    return _way_in_place(operator, name) if name.endswith("_") and not name.endswith("__") else None


def _way_in_place(operator: TorchOperator, name: str) -> OperatorWay | None:
    """Return the way of ``name_``: the expression of ``name``, PyTorch's decomposition, or ``name`` and a copy."""
    row = TABLE.get(name[:-1])
    if row is not None and row.kind == "expression":
        return row
    if is_composite(operator):
        return COMPOSITE
    functional = _functional(operator, name)
    parts = decomposition_table.get(operator)
    if parts is not None and (functional is None or way_of(functional).kind != "kernel"):
        return decomposition(parts)
    return None if functional is None or way_of(functional).kind == "host" else in_place_of(functional)


def _functional(operator: TorchOperator, name: str) -> TorchOperator | None:
    """Return the out-of-place form of an in-place operator, or None."""
    try:
        functional: TorchOperator = getattr(getattr(aten, name[:-1]), operator._overloadname)  # noqa: SLF001
    except AttributeError:  # there is no such form
        return None
    return functional
