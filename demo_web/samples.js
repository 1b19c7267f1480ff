/** Texts to begin with. */

/** A name, and what is said. */
export const SAMPLES = [
  { lang: "en", name: "Welcome", text: "Hello, and welcome. This voice begins to speak before the text is finished, and keeps its place when the network does not. On May 3rd it cost $4.99, and took less than a tenth of a second." },
  { lang: "zh", name: "你好", text: "你好，欢迎来听一听。今天是2026年3月15日，气温23度，一共花了128.5元。读到哪个字，哪个字就会亮起来。" },
  { lang: "zh", name: "中英混合 / Mixed", text: "我们用 iPhone 15 测试了 streaming，效果很好。Then the line was cut three times, and not a word was lost. 一个字也没有少。" },
  { lang: "en", name: "A story", text: `The lighthouse stood where the land gave up. Every evening old Mara climbed its 112 steps, lit the lamp, and read aloud to the sea. Nobody had asked her to, but the fishermen said that on clear nights they could hear a sentence or two, and that it helped.

One winter a storm took the bridge, and for nine days no boat came. On the tenth, a boy in a yellow coat rowed out with bread, oil and a question. "What happened," he asked, "after the captain opened the door?"

Mara laughed until she had to sit down. Then she found the page, turned up the lamp, and went on exactly where she had stopped.` },
  { lang: "zh", name: "一个故事", text: `山脚下有一座小邮局，只有一位邮递员，大家都叫他老周。有一年冬天，大雪封了路，信送不出去。老周就坐在窗边，拿起电话，一封一封地念给收信的人听。念到高兴的地方，他自己先笑了；念到伤心的地方，他就停一停，等对方擦干眼泪。

念到一半，电话线断了。第二天线路修好，铃声又响起来。老周没有问候，也没有重复，只是翻开信纸，从断掉的那个字，接着往下念。` },
];

/** @param {"en"|"zh"} language @returns {string}  as `lang` says it */
export const langOf = language => language === "zh" ? "zh-CN" : "en";

/** @param {HTMLSelectElement} list  gets their names, behind one for a text of one's own @param {(sample: typeof SAMPLES[number]) => void} use  called with the one that is chosen */
export function offer(list, use) {
  list.append(...SAMPLES.map(({ lang, name }) => {
    const option = new Option(name, name);
    option.lang = langOf(/** @type {"en"|"zh"} */ (lang));
    return option;
  }));
  list.addEventListener("change", () => use(SAMPLES[list.selectedIndex - 1]));
}
