Casts that lose nothing on the way are one cast or none; a rounding on the way stays.
// before
graph g {
  %x: bf16[10] = input argument "x"
  %y: f32[10] = input argument "y"
  %n: i32[4] = input argument "n"
  %b: b8[4] = input argument "b"
  %same: f32[10] = cast(%y) [dtype=f32]
  %wide: f32[10] = cast(%x) [dtype=f32]
  %back: bf16[10] = cast(%wide) [dtype=bf16]
  %wider: f64[10] = cast(%wide) [dtype=f64]
  %half: f16[10] = cast(%wide) [dtype=f16]
  %low: bf16[10] = cast(%same) [dtype=bf16]
  %rounded: f32[10] = cast(%low) [dtype=f32]
  %long: i64[4] = cast(%n) [dtype=i64]
  %short: i8[4] = cast(%long) [dtype=i8]
  %double: f64[4] = cast(%n) [dtype=f64]
  %again: i32[4] = cast(%double) [dtype=i32]
  %guess: i16[4] = cast(%double) [dtype=i16]
  %single: f32[4] = cast(%n) [dtype=f32]
  %lossy: i32[4] = cast(%single) [dtype=i32]
  %byte: u8[4] = cast(%b) [dtype=u8]
  %float: f32[4] = cast(%byte) [dtype=f32]
  output result "same" = %same
  output result "back" = %back
  output result "wider" = %wider
  output result "half" = %half
  output result "rounded" = %rounded
  output result "short" = %short
  output result "again" = %again
  output result "guess" = %guess
  output result "lossy" = %lossy
  output result "float" = %float
}
// after
graph g {
  %x: bf16[10] = input argument "x"
  %y: f32[10] = input argument "y"
  %n: i32[4] = input argument "n"
  %b: b8[4] = input argument "b"
  %wider: f64[10] = cast(%x) [dtype=f64]
  %half: f16[10] = cast(%x) [dtype=f16]
  %low: bf16[10] = cast(%y) [dtype=bf16]
  %rounded: f32[10] = cast(%low) [dtype=f32]
  %short: i8[4] = cast(%n) [dtype=i8]
  %double: f64[4] = cast(%n) [dtype=f64]
  %guess: i16[4] = cast(%double) [dtype=i16]
  %single: f32[4] = cast(%n) [dtype=f32]
  %lossy: i32[4] = cast(%single) [dtype=i32]
  %float: f32[4] = cast(%b) [dtype=f32]
  output result "same" = %y
  output result "back" = %x
  output result "wider" = %wider
  output result "half" = %half
  output result "rounded" = %rounded
  output result "short" = %short
  output result "again" = %n
  output result "guess" = %guess
  output result "lossy" = %lossy
  output result "float" = %float
}
