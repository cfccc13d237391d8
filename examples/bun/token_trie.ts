// The C ABI of include/token_trie.h, as much of it as a stream needs, for bun:ffi.

import { CString, dlopen, JSCallback, type Pointer } from "bun:ffi";

const { prototype } = DataView;
const i32 = { width: 4, get: prototype.getInt32, set: prototype.setInt32 };
const f32 = { width: 4, get: prototype.getFloat32, set: prototype.setFloat32 };
const f64 = { width: 8, get: prototype.getFloat64, set: prototype.setFloat64 };
// int64_t, uint64_t, size_t and pointers: all below 2^53 here, where a number is exact.
const i64: typeof f64 = {
  width: 8,
  get(this: DataView, at, little) {
    return Number(this.getBigInt64(at, little));
  },
  set(this: DataView, at, value, little) {
    this.setBigInt64(at, BigInt(value), little);
  },
};

type Layout<Name extends string> = { bytes: number; members: Map<Name, { kind: typeof f64; at: number }> };

// A struct is bytes. In the header's order, each member stands at the next multiple of its own width, and the whole is
// filled up to a multiple of 8, the widest member's.
function layout<Name extends string>(kinds: Record<Name, typeof f64>): Layout<Name> {
  const members: Layout<Name>["members"] = new Map();
  let end = 0;
  for (const [name, kind] of Object.entries<typeof f64>(kinds)) {
    const at = Math.ceil(end / kind.width) * kind.width;
    members.set(name as Name, { kind, at });
    end = at + kind.width;
  }
  return { bytes: Math.ceil(end / 8) * 8, members };
}

// prettier-ignore
export const LAYOUTS = {
  token_trie_stream_params: layout({
    size: i64, n_ctx: i32, n_batch: i32, n_threads: i32, n_gpu_layers: i32, sampling: i64, step_by_step: i32,
    adapters: i64, adapter_scales: i64, n_adapters: i64, device_sampling: i32, max_state_bytes: i64,
  }),
  token_trie_sampling: layout({
    size: i64, seed: i64, temperature: f32, top_p: f32, top_k: i32, min_p: f32,
    penalty_last_n: i32, penalty_repeat: f32, penalty_freq: f32, penalty_present: f32,
  }),
  token_trie_token: layout({ size: i64, id: i32, forced: i32, logprob: f32, text_len: i64, text: i64 }),
  token_trie_stream_state: layout({
    size: i64, stop: i32, span: i32, n_items: i32, leaf: i64, leaf_name: i64, logprob: f64, n_tokens: i64,
    n_cached: i64, n_forced: i64, n_branches: i64, n_free: i64, n_passes: i64, decode_ns: i64, generate_ns: i64,
    n_context: i64, n_context_max: i64, cache_bytes: i64, n_imported: i64,
    n_closed: i64, ending: i32, n_on_device: i64, n_states_max: i64, state_bytes: i64,
  }),
};
const { token_trie_stream_params: PARAMS, token_trie_sampling: SAMPLING } = LAYOUTS;
const { token_trie_token: TOKEN, token_trie_stream_state: STATE } = LAYOUTS;

type Values<L> = L extends Layout<infer Name> ? Record<Name, number> : never;
export type StreamParams = Partial<Omit<Values<typeof PARAMS>, "size" | "sampling">>;
export type Sampling = Partial<Omit<Values<typeof SAMPLING>, "size">>;

// A struct that the caller makes begins with its size; zero is every other member's default.
function makeStruct<Name extends string>({ bytes, members }: Layout<Name>, values: Partial<Record<Name, number>> = {}) {
  const view = new DataView(new ArrayBuffer(bytes));
  for (const [name, { kind, at }] of members) {
    kind.set.call(view, at, name === "size" ? bytes : (values[name] ?? 0), true);
  }
  return new Uint8Array(view.buffer);
}

function readStruct<Name extends string>({ members }: Layout<Name>, buffer: ArrayBufferLike): Record<Name, number> {
  const view = new DataView(buffer);
  const values = [...members].map(([name, { kind, at }]) => [name, kind.get.call(view, at, true)]);
  return Object.fromEntries(values);
}

const SYMBOLS = {
  token_trie_last_error: { args: [], returns: "cstring" },
  token_trie_stream_open_file: { args: ["ptr", "ptr"], returns: "ptr" },
  token_trie_stream_get_vocab: { args: ["ptr"], returns: "ptr" },
  token_trie_stream_prefill: { args: ["ptr", "ptr", "usize"], returns: "i32" },
  token_trie_set_read: { args: ["ptr", "i32", "ptr", "usize"], returns: "ptr" },
  token_trie_set_free: { args: ["ptr"], returns: "void" },
  token_trie_stream_set_token_trie: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  token_trie_stream_clear_token_trie: { args: ["ptr"], returns: "i32" },
  token_trie_stream_set_sampling: { args: ["ptr", "ptr"], returns: "i32" },
  token_trie_stream_next: { args: ["ptr", "ptr", "ptr"], returns: "i32" },
  token_trie_stream_get_state: { args: ["ptr", "ptr"], returns: "i32" },
  token_trie_stream_close: { args: ["ptr"], returns: "void" },
  // llama.cpp's own. Symbols are looked for in a library and in all that it is linked with, so these are found in the
  // very libllama that libtoken_trie uses. Opening .../libllama.so here would load a second one.
  llama_log_set: { args: ["ptr", "ptr"], returns: "void" },
  llama_tokenize: { args: ["ptr", "ptr", "i32", "ptr", "i32", "bool", "bool"], returns: "i32" },
} as const;

export type Library = ReturnType<typeof openLibrary>;
export const openLibrary = (path: string) => dlopen(path, SYMBOLS).symbols;

// llama.cpp logs from any thread, until the process ends; so the callback is never closed.
export function silence(library: Library): void {
  library.llama_log_set(new JSCallback(() => {}, { args: ["i32", "ptr", "ptr"], threadsafe: true }).ptr, null);
}

export const SAMPLED = 1;
const STOP_MAX_TOKENS = 1; // more may follow

export interface Token {
  id: number;
  forced: boolean; // the only one allowed where it stands: neither sampled nor evaluated alone
  logprob: number;
  text: string;
}

export class Stream {
  readonly #c: Library;
  readonly #stream: Pointer;
  readonly #vocab: Pointer;

  constructor(library: Library, model: string, params: StreamParams = {}) {
    this.#c = library;
    const path = Buffer.from(`${model}\0`);
    this.#stream = this.#check(library.token_trie_stream_open_file(path, makeStruct(PARAMS, params)));
    this.#vocab = this.#check(library.token_trie_stream_get_vocab(this.#stream));
  }

  // special: begin with a beginning-of-text token, where the model has one.
  tokenize(text: string, special: boolean): Int32Array {
    const bytes = Buffer.from(text);
    const tokens = new Int32Array(bytes.length + 8);
    const n = this.#c.llama_tokenize(this.#vocab, bytes, bytes.length, tokens, tokens.length, special, false);
    return tokens.subarray(0, Math.max(n, 0));
  }

  prefill(tokens: Int32Array): void {
    this.#check(this.#c.token_trie_stream_prefill(this.#stream, tokens, tokens.length));
  }

  // The next span is the best member of a set.
  setTrie(payload: object): void {
    const json = Buffer.from(JSON.stringify(payload));
    const set = this.#check(this.#c.token_trie_set_read(this.#vocab, 0, json, json.length));
    try {
      this.#check(this.#c.token_trie_stream_set_token_trie(this.#stream, set, null));
    } finally {
      this.#c.token_trie_set_free(set);
    }
  }

  clearTrie(): void {
    this.#check(this.#c.token_trie_stream_clear_token_trie(this.#stream));
  }

  // Without any, the best token is taken each time.
  setSampling(sampling: Sampling = {}): void {
    this.#check(this.#c.token_trie_stream_set_sampling(this.#stream, makeStruct(SAMPLING, sampling)));
  }

  // Each token is computed when it is asked for.
  *generate(maxTokens: number): Generator<Token> {
    const bytes = makeStruct(TOKEN);
    const stop = new Int32Array([STOP_MAX_TOKENS]);
    for (let n = 0; n < maxTokens && stop[0] === STOP_MAX_TOKENS; n++) {
      this.#check(this.#c.token_trie_stream_next(this.#stream, bytes, stop));
      const { id, forced, logprob, text_len, text } = readStruct(TOKEN, bytes.buffer);
      if (id >= 0) {
        // A length of 0 would mean: up to the next NUL.
        const piece = text_len === 0 ? "" : `${new CString(text as Pointer, 0, text_len)}`;
        yield { id, forced: forced === 1, logprob, text: piece };
      }
    }
  }

  state() {
    const bytes = makeStruct(STATE);
    this.#check(this.#c.token_trie_stream_get_state(this.#stream, bytes));
    const { leaf_name, ...state } = readStruct(STATE, bytes.buffer);
    return { ...state, leafName: leaf_name === 0 ? null : `${new CString(leaf_name as Pointer)}` };
  }

  [Symbol.dispose](): void {
    this.#c.token_trie_stream_close(this.#stream);
  }

  // Functions fail with NULL or a negative number, and leave a message.
  #check<Result extends number | bigint | null>(result: Result) {
    if (result === null || result < 0) {
      throw new Error(`${this.#c.token_trie_last_error()}`);
    }
    return result as NonNullable<Result> & Pointer;
  }
}
