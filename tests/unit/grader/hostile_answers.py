# ruff: noqa: E501
"""Answers made to hang, crash or fool a grader, and golds beside them."""

TOWERS = [
    r"9^{9^{9^9}}", r"9^{9^9}", r"10^{10^{10}}", r"(9^9)^{9^9}", r"2^{2^{2^{2^{2^{2}}}}}", r"e^{e^{e^{e^{e}}}}", r"9^{9^{9^9}}-9^{9^{9^9}}", r"\sqrt{9^{9^9}}",
    r"(10^{9})!", r"(((9!)!)!)!", r"9!!!!!!!!", r"\binom{10^9}{10^8}", r"\binom{10^{20}}{10^{19}}", r"10^{-10^{10}}", r"1e999999999", r"1e-999999999", r"5E+88888888",
    r"\frac{1}{9^{9^{9}}}", r"x^{9^{9^9}}", r"(x+1)^{100000}", r"(x+y+z)^{5000}", r"(a+b+c+d+e)^{300}", r"\prod_{k=1}^{100000} k", r"F_{10^{100}}", r"10^{100000000}",
    r"7^{7^{7}} \mod 1000", r"\gcd(10^{10^{9}}, 7)", r"2^{1000000000} - 1", r"3^{3^{3^3}} + \pi", r"0.1^{10^{10}}", r"1.0000001^{10^{12}}",
]  # fmt: skip
ENDLESS = [
    r"\sum_{k=1}^{\infty} \frac{\sin(k^3)}{k^k}", r"\sum_{n=1}^{10^{9}} \frac{1}{n}", r"\sum_{k=1}^{\infty} \frac{1}{k^5+k+1}", r"\int_0^\infty \frac{\sin(x^x)}{\ln(x)+e^x} dx",
    r"\int_0^1 \int_0^1 \int_0^1 \sin(xyz)^{xyz} dx dy dz", r"\lim_{x \to 0} \frac{\sin(\tan(x)) - \tan(\sin(x))}{x^7}", r"\lim_{n\to\infty} (1+1/n)^{n^2}",
    r"\int \sqrt{\tan x + \sqrt{\sin x}} dx", r"\prod_{p=2}^{\infty} \frac{1}{1-p^{-2}}", r"\sum_{i=1}^{1000}\sum_{j=1}^{1000}\sum_{k=1}^{1000} \frac{ijk}{i+j+k}",
    r"\int_{-\infty}^{\infty} e^{-x^4+\cos(x)} dx", r"\frac{d^{50}}{dx^{50}} \tan(x)^{20}", r"x^5+x+1=0", r"\sin(x)+x^x=e^{x}", r"x^{x^x} = 2", r"\Gamma(\Gamma(\Gamma(10)))",
    r"\zeta(\frac12 + 10^{10} i)", r"\cos(\cos(\cos(\cos(\cos(\cos(x))))))=x", r"|x|^{|x|^{|x|}} < 3", r"x^7-x^5+\sin x < 1", r"\lfloor 10^{50} \pi \rfloor", r"\sin(10^{10000})",
    r"\begin{pmatrix} a&b&c\\d&e&f\\g&h&i\end{pmatrix}^{50}", r"\begin{vmatrix} a&b&c&d\\e&f&g&h\\i&j&k&l\\m&n&o&p \end{vmatrix}", r"\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2}}}}}}}",
]  # fmt: skip
LONG = [
    r"\gcd(10^{100000}!,7)", r"\operatorname{lcm}(2^{300000}-1, 3^{300000}-1)", r"\max(10^{100000}!,7)", r"\lfloor e^{1000000} \rfloor", r"\lfloor \sqrt{10^{10000}+1} \rfloor", r"1000001!!", r"1000000! \bmod 7",
    r"\Gamma(100000.5)", r"\prod_{k=1}^{10000} (k^2+1)", r"\sum_{k=0}^{5000} \binom{5000}{k}", r"\sum_{k=1}^{\infty} \frac{1}{k^{1000}}",
]  # fmt: skip
"""Long integers and products that take one call: nothing that is built on the way counts them."""
POLYNOMIALS = [r"x^{50}+3x+1=0", r"x^{30}+x-3>0"]
CODE = [
    r"__import__('os').system('sleep 30')", r"().__class__.__bases__[0].__subclasses__()", r"exec('while True: pass')", r"open('/etc/passwd').read()", r"lambda: (yield)",
    r"eval(compile('1/0','','exec'))", r"{{7*7}}", r"${jndi:ldap://x}", r"'; DROP TABLE answers; --", r"\input{/etc/passwd}", r"\write18{sleep 30}", r"\def\x{\x\x}\x", r"%s%s%s%n", r"{0.__class__}",
]  # fmt: skip
BYTES = [
    "\x00", "5\x00", "\x00" * 500, "\ud800", "1\udfff2", "\ud83d\ude00", "é́́́" * 100, "‮5", "\u200b" * 300 + "5", "٣", "５", "﷽" * 50, "𝟓", "½" * 100, "√" * 500, "√(" * 300, "²" * 500, "\x0c" * 400,
    "\r\n\t" * 200, "\x1b[31m5", "\\" * 999, "\\" * 1000, "$" * 1000, "`" * 500, "\\u0000", "\N{BYTE ORDER MARK}5", "a\u0301" * 300, "\\$" * 400, "%" * 900, "&" * 500, "~" * 1000, "^" * 500, "_" * 500, "^{_{" * 100,
]  # fmt: skip
SHAPES = [
    "{" * 10_000 + "}" * 10_000, "(" * 39 + "x" + ")" * 39, "[" * 1000, ")" * 1000, r"\frac{" * 35 + "1" + "}{2}" * 35, r"\sqrt{" * 39 + "2" + "}" * 39, r"\frac12" * 250, r"\left(" * 200, "-" * 1900 + "1", "+" * 1000,
    "1+" * 900 + "1", "x*" * 800 + "x", "1," * 900 + "2", "(1,2)," * 300, "a<" * 500 + "b", "x=" * 600 + "5", r"x\neq " * 200, "1:" * 500 + "2", r"\pm " * 300 + "1", r"1\pm2\pm3\pm4\pm5\pm6\pm7\pm8\pm9", "1/" * 900 + "2", "2^" * 900 + "2",
    "!" * 500, "5" + "!" * 300, "9" * 1999, "0." + "3" * 1900, "1" + "0" * 1900, "1e" + "9" * 100, r"\overline{" * 30 + "3" + "}" * 30, r"0.\overline{" + "123" * 300 + "}", r"\ldots," * 200, "1,2," + r"\ldots," * 100 + "9",
    r"\begin{pmatrix}" + "&".join(["1"] * 500) + r"\end{pmatrix}", r"\begin{pmatrix}" + r"1&2\\" * 240 + r"\end{pmatrix}", r"\begin{pmatrix}" * 50, r"\begin{array}" * 80, r"\text{" * 30 + "a" + "}" * 30, r"\text{a}" * 250,
    r"\cup " * 300, "(1,2)" + r"\cup(1,2)" * 150, r"x\in" * 300, r"\mid " * 300, "|" * 1000, "|x" * 400, r"\log" * 400, r"\log_" * 300, r"\sum" * 300, r"\int" * 300, r"\binom" * 200, r"_{" * 35 + "1" + "}" * 35, "x_1" * 500,
    "abcdefghijklmnopqrstuvwxyz" * 70, "and " * 400, " or ".join(["x"] * 300), "word " * 390, r"\unknowncommand" * 100, r"\boxed{" * 30 + "5" + "}" * 30, "5 " + "cm^2 " * 300, "5" + "%" * 500, r"^\circ" * 300, "1 2 3 " * 300, "0x" + "f" * 500,
]  # fmt: skip
HOSTILE = [f"\\boxed{{{text}}}" for text in TOWERS + ENDLESS + LONG + CODE + BYTES + SHAPES] + [
    "\\boxed{" * 100_000, "\\boxed{1}" * 50_000, "\\boxed{1}," * 50_000 + "\\boxed{1}", "x" * 10_000_000, "\\boxed{" + "1" * 10_000_000 + "}", "{" * 5_000_000, "\\" * 3_000_000, "\\boxed{\\boxed{" + "5" + "}" * 1_000_000, "$" * 2_000_000 + "answer is " * 100,
]  # fmt: skip
GOLDS = [
    "17", r"\frac{1}{2}", r"x^2+1", r"(1,2)", r"\sqrt{2}", r"x=17", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    r"(-\infty,3)\cup(5,\infty)", "1,2,3", r"90^\circ", r"\text{east}", r"x^5+x=3",
]  # fmt: skip


def beside_golds() -> list[tuple[str, str]]:
    """(gold, response): every hostile answer beside one of the golds, in turn, and polynomials beside their like."""
    turns = [(GOLDS[index % len(GOLDS)], response) for index, response in enumerate(HOSTILE)]
    return turns + [("x^2=1" if "=" in text else "x>1", f"\\boxed{{{text}}}") for text in POLYNOMIALS]
