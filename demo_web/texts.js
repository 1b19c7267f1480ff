/** The interface's words in English and Chinese. Pairs, so that neither language can lack what the other has. */

/** @type {Record<string, [string, string]>} */
export const TEXTS = {
  "tagline": ["Speech while the text is still being written", "文字还在写，语音已开始"],
  "language": ["中文", "English"],
  "write": ["Text", "文本"],
  "samples": ["Sample texts", "示例文本"],
  "text": ["Text to be spoken", "要朗读的文本"],
  "ways": ["How the text comes", "文本的输入方式"],
  "way.text": ["Type or paste", "输入或粘贴"],
  "way.typing": ["As I type", "边打边读"],
  "way.model": ["Like an AI model", "模拟大模型"],
  "hint.text": ["All of it is sent at once.", "一次性全部发送。"],
  "hint.typing": ["Enter says it now. What was sent will be said.", "回车立即朗读；已发送的不能撤回。"],
  "rate": ["Characters a second", "每秒字符数"],
  "rate.value": ["{n} characters/s", "每秒 {n} 字"],
  "count": ["{n} characters", "{n} 个字符"],
  "voice": ["Voice", "音色"],
  "voice.default": ["The server's choice", "由服务器选择"],
  "speed": ["Speed", "语速"],
  "speed.fixed": ["fixed", "固定"],
  "more": ["More settings", "更多设置"],
  "format": ["Format", "格式"],
  "format.auto": ["Automatic", "自动"],
  "format.opus": ["Opus (compressed)", "Opus（压缩）"],
  "format.pcm": ["PCM (as it was made)", "PCM（无损）"],
  "format.switch": ["PCM, Opus on a slow line", "PCM，慢速时换 Opus"],
  "mode": ["Mode", "模式"],
  "mode.auto": ["Automatic", "自动"],
  "mode.stream": ["Stream", "流式"],
  "mode.block": ["Block", "分块"],
  "mode.stream.long": ["Stream: small pieces, soon", "流式：小块，更快"],
  "mode.block.long": ["Block: larger pieces, safer", "分块：大块，更稳"],
  "preroll": ["Pre-buffer", "预缓冲"],
  "preroll.note": ["Kept in hand before the first sound: more is calmer, less is sooner.", "播放前先存好的音频：多则稳，少则快。"],
  "speak": ["Speak", "朗读"],
  "finish": ["Finish", "读完"],
  "stop": ["Stop", "停止"],
  "download": ["Download", "下载"],
  "download.cancel": ["Cancel download", "取消下载"],
  "download.begun": ["The file is being made.", "正在生成文件。"],
  "download.busy": ["{s} s of speech, {size} so far.", "已有 {s} 秒语音，{size}。"],
  "download.size": ["{size} so far.", "已有 {size}。"],
  "download.done": ["Saved: {size}.", "已保存：{size}。"],
  "download.cancelled": ["Download cancelled.", "下载已取消。"],
  "keys": ["Ctrl+Enter speaks, Escape stops.", "Ctrl+Enter 朗读，Esc 停止。"],
  "keys.finish": ["Ctrl+Enter finishes, Escape stops.", "Ctrl+Enter 读完，Esc 停止。"],
  "listen": ["Listen", "聆听"],
  "picture": ["The sound's level as it plays", "播放时的音量波形"],
  "reading": ["The text as it is spoken", "正在朗读的文本"],
  "reading.empty": ["What is spoken appears here, and the word you hear is marked.", "朗读的文本会显示在这里，正在读的词会高亮。"],
  "heard.all": ["Heard to the end.", "已全部听完。"],
  "heard.none": ["Nothing in it can be spoken.", "其中没有可朗读的内容。"],
  "heard.part": ["Stopped. {n} of {all} characters were heard (underlined).", "已停止。共 {all} 个字符，听到 {n} 个（下划线）。"],
  "state.starting": ["Asking the server", "正在联系服务器"],
  "state.idle": ["Ready", "就绪"],
  "state.connecting": ["Connecting", "正在连接"],
  "state.waiting": ["Waiting for sound", "等待声音"],
  "state.speaking": ["Speaking", "正在朗读"],
  "state.reconnecting": ["Reconnecting", "正在重连"],
  "state.stalled": ["Waiting for more", "等待后续音频"],
  "state.silent": ["Sound is blocked", "声音被阻止"],
  "state.away": ["Not available", "不可用"],
  "state.locked": ["Needs a key", "需要密钥"],
  "figure.first": ["Time to first audio", "首音延迟"],
  "figure.first.note": ["heard; arrived after {ms}", "听到；{ms}后到达"],
  "figure.first.live": ["since the first character", "自第一个字起"],
  "figure.first.only": ["arrived, not heard yet", "已到达，尚未听到"],
  "figure.buffer": ["Buffer", "缓冲"],
  "figure.buffer.note": ["in hand; pre-buffer {ms}", "已备好；预缓冲 {ms}"],
  "figure.bitrate": ["Bitrate", "码率"],
  "figure.bitrate.note": ["{mb} MB in all", "共 {mb} MB"],
  "figure.underruns": ["Underruns", "断音"],
  "figure.underruns.note": ["times it ran dry", "播放中断次数"],
  "figure.reconnects": ["Reconnects", "重连"],
  "figure.reconnects.note": ["and started anew: {n}", "另重新开始：{n}"],
  "figure.verified": ["Verified samples", "已校验采样"],
  "figure.verified.note": ["as the server made them", "与服务器一致"],
  "figure.verified.opus": ["every packet as it was sent", "每个数据包均一致"],
  "figure.verified.wait": ["checked at the end", "结束时校验"],
  "figure.verified.not": ["not checked: no session gave all of it", "未校验：不是在一个会话中完整收到"],
  "ms": ["{n} ms", "{n} 毫秒"],
  "s": ["{n} s", "{n} 秒"],
  "kbit": ["{n} kbit/s", "{n} kbit/s"],
  "kb": ["{n} kB", "{n} kB"],
  "mb": ["{n} MB", "{n} MB"],
  "used.chosen": ["as you chose", "按您的选择"],
  "used.opus": ["small, and this browser decodes it", "体积小，浏览器可解码"],
  "used.switch.pcm": ["the line is fast enough", "网络足够快"],
  "used.switch.opus": ["the line was too slow for PCM", "网络太慢，不适合 PCM"],
  "used.no_webcodecs": ["this browser cannot decode Opus", "浏览器无法解码 Opus"],
  "used.insecure": ["Opus needs a secure address (https)", "Opus 需要安全地址（https）"],
  "reason.": ["nothing is wrong with the line", "网络正常"],
  "reason.fixed": ["as you chose", "按您的选择"],
  "reason.ack_age": ["audio is on its way for too long", "音频在途时间过长"],
  "reason.stall": ["playing ran dry", "播放断过"],
  "reason.buffer_low": ["the buffer is nearly empty", "缓冲快要空了"],
  "reason.buffer_falling": ["the buffer gets shorter", "缓冲在减少"],
  "reason.jitter": ["the line's delay varies a lot", "网络延迟波动大"],
  "reason.resumed": ["the connection was lost a moment ago", "刚刚断过线"],
  "reason.recovered": ["the line is calm again", "网络已恢复平稳"],
  "reason.idle": ["nothing was sent for a while", "有一会儿没有发送"],
  "chart": ["The last minute", "最近一分钟"],
  "chart.buffer": ["Buffer, s", "缓冲（秒）"],
  "chart.bitrate": ["Bitrate, kbit/s", "码率（kbit/s）"],
  "chart.now": ["now", "现在"],
  "chart.ago": ["{n} s ago", "{n} 秒前"],
  "chart.summary": ["Buffer {buffer}, bitrate {bitrate}; {modes} mode changes, {underruns} underruns, {reconnects} reconnects.",
    "缓冲 {buffer}，码率 {bitrate}；模式切换 {modes} 次，断音 {underruns} 次，重连 {reconnects} 次。"],
  "mark.mode": ["mode change", "模式切换"],
  "mark.underrun": ["underrun", "断音"],
  "mark.reconnect": ["connection lost", "断线"],
  "line": ["Try it on a bad line", "试试糟糕的网络"],
  "line.why": ["Cut it while it speaks: it goes on at the very next sample. Nothing is lost, nothing is said twice.",
    "朗读时切断网络：它会从下一个采样继续，不丢失，也不重复。"],
  "cut": ["Cut my connection", "切断连接"],
  "rough": ["Bad network", "糟糕网络"],
  "log": ["What happened", "发生了什么"],
  "log.empty": ["Nothing yet.", "暂无记录。"],
  "log.speak": ["You asked for speech", "开始朗读"],
  "log.audible": ["First sound", "听到第一声"],
  "log.mode": ["{mode} mode: {reason}", "{mode}模式：{reason}"],
  "log.underrun": ["Ran dry", "断音"],
  "log.lost": ["Connection lost", "连接断开"],
  "log.back": ["Connected again", "已重新连接"],
  "log.restarted": ["The server had lost the session: it goes on in a new one", "服务器丢失了会话：在新会话中继续"],
  "log.cut": ["You cut the connection", "您切断了连接"],
  "log.rough": ["Bad network on", "糟糕网络：开"],
  "log.calm": ["Bad network off", "糟糕网络：关"],
  "log.stopped": ["You stopped it", "您停止了朗读"],
  "log.verified": ["Verified: all {n} samples are right", "校验通过：{n} 个采样全部正确"],
  "log.failed": ["It failed", "出错了"],
  "key.title": ["This server asks for a key", "此服务器需要密钥"],
  "key": ["Key", "密钥"],
  "key.why": ["Kept in this page's memory, and sent only to this server, for short-lived tokens.", "只保存在本页内存中，仅发送给此服务器以换取短期令牌。"],
  "key.send": ["Use this key", "使用此密钥"],
  "key.wrong": ["The server does not know this key.", "服务器不认识这个密钥。"],
  "key.expired": ["The key is no longer accepted. Please enter one again.", "密钥已失效，请重新输入。"],
  "support.insecure_context": ["This address is not secure, so the browser withholds AudioWorklet and mostly WebCodecs. Sound works, mostly uncompressed. For the rest use https or http://localhost, or start the server with --tls-self-signed.", "此地址不安全，浏览器不提供 AudioWorklet，多数也不提供 WebCodecs。声音仍可播放，但通常未压缩。请改用 https 或 http://localhost，或以 --tls-self-signed 启动服务器。"],
  "support.no_worklet": ["This browser has no AudioWorklet: sound is played in a simpler way.", "浏览器没有 AudioWorklet：改用简单播放方式。"],
  "support.no_webcodecs": ["This browser has no WebCodecs: audio comes as PCM, which needs a faster line.", "浏览器没有 WebCodecs：改用 PCM，需要更快的网络。"],
  "support.no_worker": ["This page may start no worker: in a hidden tab it may fall silent.", "页面无法启动 Worker：切到后台时声音可能中断。"],
  "again": ["Try again", "重试"],
  "again.now": ["It may work again now.", "现在可以重试了。"],
  "again.in": ["Again in {n} s.", "{n} 秒后可重试。"],
  "tap": ["Turn sound on", "打开声音"],
  "error.audio": ["The browser has paused the sound. Tap or press any key.", "浏览器暂停了声音，请点按或按任意键。"],
  "error.no_audio": ["The browser gives this page no sound. Is there a sound device?", "浏览器没有提供声音输出，请检查音频设备。"],
  "error.no_opus": ["The browser could not decode the sound. Speak again: it comes uncompressed then.", "浏览器无法解码音频。请重新朗读，将改用无压缩音频。"],
  "error.no_worker": ["A part of this page failed. Speak again: it was started anew.", "页面的一部分出错，已重新启动，请重新朗读。"],
  "error.closed": ["This page's player was closed. Reload the page.", "播放器已关闭，请刷新页面。"],
  "error.bad_value": ["A setting has a value that is not allowed.", "某项设置的值不允许。"],
  "error.empty": ["There is no text to speak.", "没有要朗读的文本。"],
  "error.unreachable": ["The server does not answer. Is it running, and is this device online?", "服务器没有响应。它在运行吗？设备联网了吗？"],
  "error.gone": ["The connection did not come back in time. What was heard is marked.", "未能及时恢复连接。已听到的部分已标出。"],
  "error.busy": ["The server is busy.", "服务器繁忙。"],
  "error.loading": ["The server is just starting.", "服务器正在启动。"],
  "error.capacity": ["The server speaks for as many people as it can.", "服务器已满负荷。"],
  "error.sessions": ["You have as many sessions open as you may.", "您打开的会话数已达上限。"],
  "error.rate": ["You ask more often than you may.", "请求过于频繁。"],
  "error.quota": ["You have used up what you may for now.", "当前配额已用完。"],
  "error.stopping": ["The server is about to stop.", "服务器即将停止。"],
  "error.unauthorized": ["Not allowed: the key is missing, wrong, or no longer valid.", "无权访问：密钥缺失、错误或已失效。"],
  "error.forbidden": ["The server does not let pages from this address speak. Its option --allow-origins can.", "服务器不允许此地址的页面朗读，可用 --allow-origins 放行。"],
  "error.trying_loading": ["The server is just starting, and speaks as soon as it can; Stop gives up.", "服务器正在启动，就绪后立即朗读；按“停止”可放弃。"],
  "error.trying_stopping": ["The server is just stopping. Still trying; Stop gives up.", "服务器正在停止，仍在重试；按“停止”可放弃。"],
  "error.trying": ["The server does not answer. Still trying; Stop gives up.", "服务器没有响应，仍在重试；按“停止”可放弃。"],
  "error.unknown_voice": ["This voice does not exist any more. Please choose another one.", "此音色已不存在，请选择其他音色。"],
  "error.unsupported": ["This voice cannot do what was asked for (speed or pitch, say).", "此音色不支持所选设置（如语速）。"],
  "error.text_limit": ["Too long for one go: two million characters at most.", "文本过长：一次最多两百万字符。"],
  "error.download_limit": ["Too long to download: {n} characters, and 100,000 are possible.", "文本过长，无法下载：{n} 个字符，最多 100,000 个。"],
  "error.download": ["The download broke off, and nothing was saved.", "下载中断，未保存任何内容。"],
  "error.idle_timeout": ["The session was left alone for too long. Just speak again.", "会话闲置过久，请重新朗读。"],
  "error.client_stalled": ["This device fell behind, and the server gave up.", "本设备处理过慢，服务器已放弃。"],
  "error.engine_failed": ["The speech engine does not work at the moment.", "语音引擎暂时不可用。"],
  "error.internal": ["The server failed. Its log says why.", "服务器出错，原因见其日志。"],
  "error.misbehaved": ["This page and the server do not understand each other. Reloading may help.", "页面与服务器无法互通，请刷新页面。"],
  "error.unknown": ["It did not work: {code}.", "出错：{code}。"],
  "engine": ["Engine: {name}.", "引擎：{name}。"],
  "footer": ["Everything here comes from this server; nothing is asked of anybody else.", "一切内容均来自本服务器，不向任何第三方请求。"],
  "status": ["Server status", "服务器状态"],
};

/** What the voices that come along say about themselves, in Chinese. @type {Record<string, string>} */
export const NOTES = {
  "Non-commercial use only: the voice was trained on the Baker corpus, whose publisher allows no other.": "仅限非商业用途：此音色以标贝语料库训练，其发布者不允许其他用途。",
  "Mandarin, female, 24 kHz; what is written in Latin letters is spoken by the model of en-hibari": "普通话女声，24 kHz；拉丁字母由 en-hibari 的模型朗读",
  "American English, female, 24 kHz; reads Hanzi as English syllables, without tones, and never uses the model of zh-baker":
    "美式英语女声，24 kHz；汉字读作不带声调的英语音节，不使用 zh-baker 的模型",
  "A test signal, not speech.": "测试信号，不是语音。",
  "Learnt from a recording.": "由录音学得。",
};

/** Codes that mean the same to a person: faults of page or server in the protocol, and what HTTP says in other words. @type {[string, string][]} */
const SAME = [
  ["misbehaved", "bad_json bad_message unknown_type unexpected sequence binary too_big text_window queue_full bad_ack open_timeout bad_request not_found "
    + "method_not_allowed not_acceptable request_timeout conflict length_required uri_too_long unsupported_media_type upgrade_required head_too_big "
    + "not_implemented version_not_supported"],
  ["rate", "too_many_requests"], ["busy", "unavailable no_room too_many_voices"],
];

/**
 * @typedef {"en"|"zh"} Language
 * @param {string} code  of a failure: the protocol's, the player's or the page's
 * @returns {string}  the text's key; `error.unknown` where there are no words for it
 */
export function failureKey(code) {
  for (const [same, codes] of SAME) if (codes.split(" ").includes(code)) return `error.${same}`;
  return `error.${code}` in TEXTS ? `error.${code}` : "error.unknown";
}

/**
 * @param {Language} language
 * @param {string} key  unknown ones come back as they are
 * @param {Record<string, string|number>} [values]  for the places {name}
 */
export function phrase(language, key, values = {}) {
  const pair = TEXTS[key];
  if (!pair) return key;
  return pair[language === "zh" ? 1 : 0].replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

/** @param {string} reason  of a mode, as the server says it; @param {Language} language  unknown ones are shown as they are */
export const modeReason = (language, reason) =>
  `reason.${reason}` in TEXTS ? phrase(language, `reason.${reason}`) : reason.replaceAll("_", " ");

/** @param {string} text @returns {Language}  what it is mostly written in: a Hanzi weighs as much as four letters */
export function languageOf(text) {
  const start = text.slice(0, 400);
  return 4 * (start.match(/\p{Script=Han}/gu)?.length ?? 0) > (start.match(/[a-z]/gi)?.length ?? 0) ? "zh" : "en";
}
