"""Names of PyTorch's operators without a kernel of their own, in alphabetical order but for leading underscores.

A name without overload stands for all overloads that have no row of their own.
"""

from __future__ import annotations

VIEW_NAMES = """
    adjoint alias as_strided _autocast_to_full_precision _autocast_to_reduced_precision broadcast_to ccol_indices
    chunk coalesce col_indices conj contiguous crow_indices detach diagonal dsplit expand_as expand flatten
    _fw_primal hsplit imag _indices indices lift_fresh linalg_diagonal mH mT _make_dual matrix_H moveaxis movedim
    narrow _neg_view numpy_T permute pin_memory positive ravel real _reshape_alias reshape_as reshape resolve_conj
    resolve_neg row_indices select slice_inverse slice split_with_sizes split squeeze swapaxes swapdims tensor_split
    _test_autograd_multiple_dispatch_view to transpose t unbind unflatten unfold _unsafe_view unsqueeze _values values
    view_as_complex view_as_real view_as view vsplit
"""
"""Operators that return a view of the same storage"""
MEMORY_NAMES = """
    empty_like empty_strided empty new_empty_strided new_empty
"""
"""Operators that return an uninitialised tensor"""
DECOMPOSED_NAMES = """
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
"""Operators that PyTorch replaces by others"""
HOST_NAMES = """
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
"""Operators that the host runs"""
