// Queries and keys are computed, values are only viewed: two pairs of permutes, one for both readers.
// before
graph g {
  %a: f32[2,4,3,8] = input argument "a"
  %b: f32[2,4,3,8] = input argument "b"
  %v: f32[2,3,4,8] = input argument "v"
  %t: f32[2,4,3,8] = input tangent "o"
  %q: f32[2,4,3,8] = mul(%a, %b)
  %k: f32[2,4,3,8] = add(%a, %b)
  %w: f32[2,4,3,8] = permute(%v) [axes=[0, 2, 1, 3]]
  %o: f32[2,4,3,8], %l: f32[2,4,3] = attention(%q, %k, %w, none) [causal=true, scale=0.5]
  %dq: f32[2,4,3,8], %dk: f32[2,4,3,8], %dv: f32[2,4,3,8] = attention_backward(%t, %q, %k, %w, none, %o, %l) [causal=true, scale=0.5]
  output result "o" = %o
  output gradient "argument:a" = %dq
  output gradient "argument:b" = %dk
  output gradient "argument:v" = %dv
}
// after
graph g {
  %a: f32[2,4,3,8] = input argument "a"
  %b: f32[2,4,3,8] = input argument "b"
  %v: f32[2,3,4,8] = input argument "v"
  %t: f32[2,4,3,8] = input tangent "o"
  %q: f32[2,4,3,8] = mul(%a, %b)
  %k: f32[2,4,3,8] = add(%a, %b)
  %w: f32[2,4,3,8] = permute(%v) [axes=[0, 2, 1, 3]]
  %q.turned: f32[2,3,4,8] = permute(%q) [axes=[0, 2, 1, 3]]
  %q.heads: f32[2,4,3,8] = permute(%q.turned) [axes=[0, 2, 1, 3]]
  %k.turned: f32[2,3,4,8] = permute(%k) [axes=[0, 2, 1, 3]]
  %k.heads: f32[2,4,3,8] = permute(%k.turned) [axes=[0, 2, 1, 3]]
  %o: f32[2,4,3,8], %l: f32[2,4,3] = attention(%q.heads, %k.heads, %w, none) [causal=true, scale=0.5]
  %dq: f32[2,4,3,8], %dk: f32[2,4,3,8], %dv: f32[2,4,3,8] = attention_backward(%t, %q.heads, %k.heads, %w, none, %o, %l) [causal=true, scale=0.5]
  output result "o" = %o
  output gradient "argument:a" = %dq
  output gradient "argument:b" = %dk
  output gradient "argument:v" = %dv
}
